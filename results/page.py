"""Writes docs/results.md and docs/beyond-the-window.md, their figures and the README's table from the archives here.

    make results

With --check nothing is written, and the exit code is 1 if the page or the README is not what the archives say.
"""

import argparse
import hashlib
import re
import sys
from contextlib import suppress
from pathlib import Path

import campaign
import laptop
import picture
import reach
from claims import AGREES, WAITING, Archive, Claim, claims, interval, laptop_claims

from lerope.core.run import RUN
from lerope.launch.sweep import SWEEP
from lerope.report.collect import RunFiles, collect
from lerope.report.figures import FIGURES as DRAWINGS
from lerope.report.figures import beyond
from lerope.report.style import Missing, save_as
from lerope.results import Sweep

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DRAWN = ROOT / "docs" / "figures" / "results"
PICTURE = DRAWN / "readme.svg"
BEYOND = "reach"
"""The figure of docs/beyond-the-window.md, one for each text."""
TEXTS = {
    "english": "English: books, scientific articles, technical documentation, diplomatic papers",
    "code": "Python: sources of the interpreter and of packages",
    "laptop": "On two cores: English, three layers, a window of 256 tokens",
}
FIGURES = {
    "english": (
        *("differences", "training", "loss-gap-by-position", "wavelengths", "band-contributions", "leave-one-out"),
        *("extrapolation", "beyond-the-window", "needle-distractors"),
    ),
    "code": ("wavelengths",),
    "laptop": ("differences", "wavelengths", "extrapolation", "beyond-the-window"),
}
STUDIES = {"english": campaign, "code": campaign, "laptop": laptop}
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
RULE = """*Not told from noise*: our 95 % interval includes no effect, or seeds disagree. *Agrees*: the paper's number
lies in an interval that does not; or, where the claim is an order and has no number, every seed has that order. *Same
direction*: the number lies outside, but there is an effect of its sign. *Differs*: what we measured says otherwise.
*One seed*: another may change it."""
INTRO = """# Results

What the paper claims, beside what runs of this repository measured. All but "What surprised us", which somebody wrote
who looked at the runs, is computed by `make results` from the archives in the folder `results`; a test fails if this
page is not what they say. The runs are those of `results/campaign.py`; anyone with a GPU and a text can repeat them:

```
lerope data prepare TEXT --out data/english
lerope ladder results/campaign.py:effect --data data/english --out runs/english --archive results/english
make results
```

The paper trains on C4, and we on the texts below, some of them more than once, with the paper's recipe but for the
number of steps, the warm-up, a seventh of them, and the learning rate, half the paper's. So differences between
encodings can be put beside the paper's, and absolute losses cannot. (Runs on a CPU, where there are any, have a part
and a table of their own: they are much smaller than any of the paper's, with rates of their own.)
"""


def page(folder: Path) -> str:
    """The page in Markdown."""
    texts = {name: Archive(folder / name, STUDIES[name]) for name in TEXTS}
    parts = [INTRO, "## Claims\n", _claim_table(claims(texts["english"], texts["code"]))]
    notes = folder / "notes.md"
    if notes.exists():
        parts.append(f"## What surprised us\n\n{notes.read_text().strip()}\n")
    for name, text in texts.items():
        if text.runs:
            parts.append(_text_part(name, text))
    parts.append(f"<!-- made from results {digest(folder)} -->\n")
    return "\n".join(parts)


def beyond_page(folder: Path) -> str:
    """docs/beyond-the-window.md: what was tried so that learned frequencies reach beyond their window."""
    parts = []
    for name, heading in TEXTS.items():
        text = Archive(folder / name, STUDIES[name])
        study = text.studies.horizon()
        if len(made := reach.rows(text, study)) > 1:
            parts.append(_beyond_part(name, heading, made, reach.waiting(study, made)))
            again = reach.rows(text, text.studies.winner())
            # Means over other seeds would not compare.
            again = [row for row in again if row.num_seeds == again[0].num_seeds > 1]
            if again and reach.verdict(again):
                parts += [_winner_part(again)]
    return reach.WORDS.read_text().replace(reach.RUNS, "\n".join(parts).strip())


def _beyond_part(name: str, heading: str, made: list[reach.Row], waiting: list[str]) -> str:
    lines = [f"## {heading}", "", reach.aims(made), "", reach.verdict(made), "", reach.table(made), ""]
    if waiting:
        lines += [f"Not measured yet: {', '.join(f'`{label}`' for label in waiting)}.", ""]
    figures = [(BEYOND, reach.TITLE, reach.CAPTION), (beyond.NAME, beyond.TITLE, beyond.CAPTION)]
    for figure, title, caption in figures:
        if (DRAWN / f"{name}-{figure}.svg").exists():
            lines += [f"![{title}](figures/results/{name}-{figure}.svg)", "", f"*{title}.* {caption}", ""]
    return "\n".join(lines)


def _winner_part(made: list[reach.Row]) -> str:
    """The best of them again, with as many seeds as there are."""
    sentence = f"### With {made[0].num_seeds} seeds\n\n{reach.aims(made)}"
    return "\n".join([sentence, "", reach.verdict(made), "", reach.table(made), ""])


def digest(folder: Path) -> str:
    """Of all archives: what the figures were drawn from."""
    found = hashlib.sha256()
    for name in TEXTS:
        for file in sorted((folder / name).glob("*/**/*")):
            if file.is_file():
                found.update(
                    str(file.relative_to(folder)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest()
                )
    return found.hexdigest()[:16]


def readme_part(folder: Path) -> str:
    """The README's table: the losses of the main study; nothing before there are any."""
    text = Archive(folder / "english")
    found = text.compared(campaign.effect())
    if found is None:
        return ""
    # Methods with fewer seeds than the others would stand beside a RoPE of other seeds.
    most = max(effect["num_seeds"] for effect in found.effects)
    effects = [effect for effect in found.effects if effect["num_seeds"] == most]
    over = interval(effects[0])[2]
    rows = [f"| RoPE | {effects[0]['baseline_loss']:.4f} | | |"]
    for effect in effects:
        low, high, _ = interval(effect)
        name = {"lerope": "**LeRoPE**", "prope": "p-RoPE"}.get(effect["method"], effect["method"])
        rows.append(f"| {name} | {effect['loss']:.4f} | {effect['difference']:+.4f} | {low:+.4f} to {high:+.4f} |")
    head = "| 52M, 4,000 steps | loss, nats per token | difference | 95 % interval |\n|---|---|---|---|\n"
    pair = text.files(campaign.effect())
    tokens = max(files.run.starts[-1].num_data_tokens or 0 for files in pair)
    times = pair[0].run.recipe.num_tokens / tokens if tokens else 0
    sentence = f"Over {over}; runs of this repository, {tokens / 1e6:.0f} million tokens of English"
    sentence += f", read {times:.1f} times. " if times else ". "
    sentence += "[All results](docs/results.md), claim by claim."
    caption = (
        "*a: learned wavelengths beside RoPE's; dashed, the window. b: LeRoPE's loss less RoPE's by position, with "
    )
    caption += "95 % intervals over documents. c: values found among distractors; dotted, picking one of them blindly.*"
    image = f"![Learned wavelengths, the loss by position, values found]({PICTURE.relative_to(ROOT)})"
    return "\n\n".join([f"{head}{chr(10).join(rows)}", sentence, image, caption])


def _claim_table(found: list[Claim]) -> str:
    measured = [claim for claim in found if claim.verdict != WAITING]
    judged = [claim for claim in measured if claim.verdict]
    agree = [claim for claim in judged if claim.verdict.startswith(AGREES)]
    alone = sum(claim.verdict != AGREES for claim in agree)
    said = f"{len(agree)} of {len(judged)} claims that have been measured agree" if judged else "None is measured yet"
    said += f", {alone} of them on one seed." if alone else "."
    lines = [said, ""]
    if measured:
        lines += ["| the paper says | we measured | |", "|---|---|---|"]
        for claim in measured:
            note = f" *({claim.note})*" if claim.note else ""
            lines.append(f"| {claim.paper} | {claim.measured}{note} | {claim.verdict} |")
        lines += ["", RULE, ""]
    waiting: dict[str, list[str]] = {}
    for claim in found:
        if claim.verdict == WAITING:
            waiting.setdefault(claim.study, []).append(claim.paper)
    if waiting:
        lines += ["Not measured yet, by study:", ""]
        lines += [f"- {study}: {'; '.join(papers)}" for study, papers in waiting.items()]
    return "\n".join([*lines, ""])


def _text_part(name: str, text: Archive) -> str:
    runs = [files for _, files in sorted(text.runs.items())]
    start = runs[0].run.starts[-1]
    tokens = start.num_data_tokens
    longest = max(files.run.recipe.num_tokens for files in runs)
    lines = [
        f"## {TEXTS[name]}",
        "",
        f"{len(runs)} runs. Data fingerprint `{runs[0].run.identity.data[:12]}`"
        + (f", {tokens / 1e6:.0f} million tokens, so the longest run reads them {longest / tokens:.1f} times" if tokens
           else "") + ".",
        "",
        "| run | steps | row | loss | perplexity | GPU | torch | date | commit |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(_run_line, runs),
        "",
        *_sweep_part(text.folder / SWEEP),
    ]  # fmt: skip
    if name == "laptop":
        lines += ["What the paper says of larger models, asked of these:", "", _claim_table(laptop_claims(text))]
    known = {figure.NAME: figure for figure in DRAWINGS}
    for figure in FIGURES[name]:
        if (DRAWN / f"{name}-{figure}.svg").exists():
            title = known[figure].TITLE
            lines += [f"![{title}](figures/results/{name}-{figure}.svg)", "", f"*{title}.* {known[figure].CAPTION}", ""]
    return "\n".join(lines)


def _sweep_part(file: Path) -> list[str]:
    """What a search for the learning rate found, if there was one."""
    if not file.exists():
        return []
    found = Sweep.load(file)
    recipe, trials = found.settings["recipe"], sorted(found.trials, key=lambda trial: trial["index"])
    head = f"Learning rates, {found.settings['rung']}, {trials[0]['encoding']}, {recipe['steps']:,} steps, one seed"
    cells = " | ".join(f"2^{-trial['index'] / 2:g}" for trial in trials)
    losses = " | ".join("diverged" if trial["loss"] is None else f"{trial['loss']:.4f}" for trial in trials)
    return [f"{head}:", "", f"| learning rate | {cells} |", f"|---|{'---|' * len(trials)}",
            f"| validation loss | {losses} |", ""]  # fmt: skip


def _run_line(files: RunFiles) -> str:
    recipe, start, evaluated = files.run.recipe, files.run.starts[-1], files.evaluation
    loss = f"{evaluated.loss:.4f} | {evaluated.perplexity:.3f}" if evaluated is not None else "| "
    gpu = (start.gpu or "CPU").removeprefix("NVIDIA ")
    where = f"{gpu} | {start.torch} | {start.date[:10]} | {(start.commit or '')[:8]}"
    return f"| {files.run.name} | {recipe.steps:,} | {recipe.row_length:,} | {loss} | {where} |"


def draw_figures(folder: Path) -> None:
    """The page's figures, as SVG: those that the runs have something for."""
    known = {figure.NAME: figure for figure in DRAWINGS}
    DRAWN.mkdir(parents=True, exist_ok=True)
    before = {file.name for file in DRAWN.glob("*.svg")}
    for name in TEXTS:
        runs = [path.parent for path in sorted((folder / name).glob(f"*/{RUN}"))]
        bundle = collect(runs) if runs else None
        for figure in FIGURES[name]:
            file = DRAWN / f"{name}-{figure}.svg"
            file.unlink(missing_ok=True)
            with suppress(Missing):
                if bundle is not None:
                    save_as(known[figure].draw(bundle), file)
        file = DRAWN / f"{name}-{BEYOND}.svg"
        file.unlink(missing_ok=True)
        with suppress(Missing):
            save_as(reach.draw(Archive(folder / name, STUDIES[name])), file)
    with suppress(Missing):
        save_as(picture.draw(Archive(folder / "english")), PICTURE)
    for gone in sorted(before - {file.name for file in DRAWN.glob("*.svg")}):
        print(f"{gone} is no longer drawn: the archives have not what it needs", file=sys.stderr)


def with_part(readme: str, part: str) -> str:
    """The README with its table of results."""
    inside = f"{BEGIN}\n{part}\n{END}" if part else f"{BEGIN}\n{END}"
    return re.sub(f"{BEGIN}.*?{END}", lambda _: inside, readme, flags=re.DOTALL)


def main() -> None:
    """Writes or checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something is stale")
    check = parser.parse_args().check
    if not check:
        draw_figures(HERE)
    readme = ROOT / "README.md"
    wanted = {
        ROOT / "docs" / "results.md": page(HERE),
        ROOT / "docs" / "beyond-the-window.md": beyond_page(HERE),
        readme: with_part(readme.read_text(), readme_part(HERE)),
    }
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is not what results/ says; run: make results", file=sys.stderr)
        else:
            path.write_text(wanted[path])
            print(f"{path.relative_to(ROOT)} written")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
