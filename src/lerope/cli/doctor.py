"""lerope doctor: whether everything that can run on this machine runs correctly."""

import json
import sys
import warnings
from collections import Counter
from contextlib import redirect_stdout

from rich.table import Table
from rich.text import Text

from lerope.cli.options import Json
from lerope.core.run import provenance
from lerope.core.terminal import Console
from lerope.doctor.checks import BROKEN, MISSING, OK, examine
from lerope.results import Diagnosis, Finding

_COLOURS = {OK: "green", MISSING: "yellow", BROKEN: "red"}


def doctor(*, json_: Json = False) -> None:
    """Find and try everything lerope can use: kernels against float64, the compiler, packages, folders.

    The exit code is 1 if something is broken: present, but failing or wrong. Missing things are not errors.

    Example: lerope doctor

    Args:
        json_: Print JSON.
    """
    console = Console(file=sys.stderr if json_ else sys.stdout)
    findings: list[Finding] = []
    with redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for finding in examine(lambda name: console.status(f"trying {name}")):
            if not json_:
                named = next((earlier["fix"] for earlier in reversed(findings) if earlier["fix"]), "")
                _show(console, finding, finding["fix"] == named)
            findings.append(finding)
    if json_:
        found = Diagnosis(settings={}, provenance=provenance(), findings=findings)
        print(json.dumps(found.as_dict(), indent=1))
    else:
        _summarize(console, findings)
    if any(finding["status"] == BROKEN for finding in findings):
        sys.exit(1)


def _show(console: Console, finding: Finding, repeated: bool) -> None:
    """One line of the table, immediately: the next may take seconds. The fix that was named last is not named again."""
    row = Table.grid(padding=(0, 2))
    row.add_column(width=7, style=_COLOURS[finding["status"]])
    row.add_column(width=17)
    row.add_column(overflow="fold")
    fix = ("; the same" if repeated else "; ", ("" if repeated else finding["fix"], "bold")) if finding["fix"] else ()
    row.add_row(finding["status"], finding["name"], Text.assemble(finding["note"], *fix))
    console.print(row)


def _summarize(console: Console, findings: list[Finding]) -> None:
    number = Counter(finding["status"] for finding in findings)
    console.print(
        f"\n{number[BROKEN]} broken, {number[MISSING]} missing, {number[OK]} ok. "
        + ("Fix what is broken first." if number[BROKEN] else "Everything that is here works.")
    )


COMMAND = doctor
