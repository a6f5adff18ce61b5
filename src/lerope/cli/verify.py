"""lerope verify DIR: whether engines reproduce an exported model."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from lerope.cli.options import File, Folder, Json
from lerope.cli.tables import new_table
from lerope.core.terminal import Console

if TYPE_CHECKING:
    from lerope.results import Verification


def verify(
    directory: Annotated[Positional[Path], arg(metavar="DIR")],
    *,
    run: Annotated[Path | None, arg(metavar="RUN", help_behavior_hint="")] = None,
    prompt: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")] = None,
    num_tokens: int = 32,
    engines: Folder = None,
    out: File = None,
    json_: Json = False,
) -> None:
    """Rebuild each engine's frequencies from exported files by its own formula, and run the installed engines.

    Says of each engine whether models of this architecture were really run in it, or whether there is only the table.
    The exit code is 1 if a table or a run differs.

    Example: lerope verify served/52M --run runs/52M-lerope-42

    With engines in environments of their own: lerope verify served/52M --engines .engines

    Args:
        directory: what `lerope export` wrote.
        run: Compare with the ladder run it came from, rounded like the export; by default, with the exported weights.
        prompt: A text to run engines on.
        num_tokens: How many tokens to generate.
        engines: A folder of virtual environments with engines, each named after what it holds: vllm, transformers-4.
        out: Also save the result as JSON here.
        json_: Print JSON.
    """
    from lerope.interop.verify import PROMPT
    from lerope.interop.verify import verify as carry_out

    if num_tokens < 1:
        raise ValueError(f"num_tokens must be 1 or more; got {num_tokens}.")
    text = PROMPT if prompt is None else prompt
    found = carry_out(directory, run=run, prompt=text, num_tokens=num_tokens, environments=engines)
    if out is not None:
        found.save(out)
    wrong = _wrong(found)
    print(json.dumps(found.as_dict(), indent=1)) if json_ else _show(found, wrong)
    if wrong:
        sys.exit(1)


def _wrong(found: "Verification") -> list[str]:
    """What is wrong, in a sentence for each kind."""
    from lerope.interop.tried import known_as

    runs = [(known_as(ran["engine"], ran["version"] or ""), ran["verdict"]) for ran in found.runs]
    other = [table["engine"] for table in found.tables if table["agrees"] is False]
    other += [engine for engine, verdict in runs if verdict in ("differs", "ignores the factors")]
    stuck = [engine for engine, verdict in runs if verdict == "cannot run"]
    sentences = [f"Not the same model in {', '.join(dict.fromkeys(other))}: do not serve it there."] * bool(other)
    return sentences + [f"Could not be run in {', '.join(dict.fromkeys(stuck))}."] * bool(stuck)


def _known(found: "Verification") -> list[str]:
    """Which engines that were not run here are known to compute another function or none, in a sentence."""
    from lerope.interop.tried import known_as

    ran = {known_as(ran["engine"], ran["version"] or "") for ran in found.runs if ran["verdict"] is not None}
    reasons: dict[str, list[str]] = {}
    for table in found.tables:
        # Without an error there was no table, and nothing follows from its note.
        reason = table["tried"] or ("agrees" if table["error"] is None else table["note"])
        if table["agrees"] is None and reason != "agrees" and table["engine"] not in ran:
            reasons.setdefault(reason, []).append(table["engine"])
    said = "; ".join(f"{', '.join(engines)} ({reason})" for reason, engines in reasons.items())
    return [f"Known not to serve it: {said}."] * bool(said)


def _show(found: "Verification", wrong: list[str]) -> None:
    from lerope.interop.apertus import only_transformers
    from lerope.interop.tried import known_as

    console = Console()
    console.print("frequencies that each engine computes from the files, against those of the model")
    texts = ("engine", "table", "this architecture, run by us")
    table = new_table("engine", "largest difference", "attention factor", *texts[1:], text=texts)
    for row in found.tables:
        error = "" if row["error"] is None else f"{row['error']:.1e}"
        factor = "" if row["attention_factor"] is None else f"{row['attention_factor']:g}"
        verdict = row["note"] or ("differs" if row["agrees"] is False else "agrees")
        ours = "table only" if row["tried"] is None else f"{row['tried']} ({row['tried_version']})"
        table.add_row(row["engine"], error, factor, verdict, ours)
    console.print(table)
    console.print(f"engines run on {found.settings['num_prompt_tokens']} tokens, against {found.reference}")
    table = new_table("engine", "version", "logits off by", "same tokens", "", text=("engine", "version", ""))
    for ran in found.runs:
        allowed = found.settings["logit_tolerances"][ran["engine"]]
        if ran["verdict"] is None:
            continue
        error = "" if ran["logit_error"] is None else f"{ran['logit_error']:.1e} of {allowed:.0e}"
        same = "" if ran["num_same_tokens"] is None else f"{ran['num_same_tokens']} of {ran['num_tokens']}"
        verdict = ": ".join(part for part in (ran["verdict"], ran["note"]) if part)
        table.add_row(ran["engine"], ran["version"] or "", error, same, verdict)
    if table.row_count > 0:
        console.print(table)
    for ran in found.runs:
        if ran["verdict"] is None:  # not in the table, whose cells would break the name of a package
            console.print(f"{known_as(ran['engine'], ran['version'] or '')}: {ran['note']}", soft_wrap=True)
    console.print(" ".join((wrong or ["Everything that was computed here agrees."]) + _known(found)))
    activation = found.settings["other_activation"]
    if activation is not None:
        console.print(f"note: {only_transformers(activation)}")


COMMAND = verify
