"""The loss gap to the baseline by position, with its error."""

from typing import Any

import numpy as np

from lerope.report.collect import Bundle
from lerope.report.style import GUIDE, PAGE, Missing, look, method_label, new_figure, plain_methods, styled, thousands

NAME = "loss-gap-by-position"
TITLE = "Loss gap by position"
CAPTION = (
    "A method's loss less the baseline's over tokens by position in the window, in bins that double; paired by seed "
    "and document, with 95 % intervals over documents. Below zero the method is better. Of many "
    "methods only the plain are drawn; the table `gap-by-position` has all."
)
_SIZE = (PAGE, 2.4)
_MOST = 3
_MOST_METHODS = 6


@styled
def draw(bundle: Bundle) -> Any:
    """One panel per rung, the three largest."""
    comparison = bundle.comparison
    if comparison is None or not comparison.by_position:
        raise Missing("Two methods at one rung are needed, both evaluated", "lerope eval RUN ...")
    rungs = list(dict.fromkeys(row["rung"] for row in comparison.by_position))[-_MOST:]
    names = plain_methods((row["method"] for row in comparison.by_position if row["rung"] in rungs), _MOST_METHODS)
    figure = new_figure(*_SIZE)
    panels = figure.subplots(1, len(rungs), sharey=True, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, rung in zip(panels, rungs, strict=True):
        for index, name in enumerate(names):
            rows = [row for row in comparison.by_position if (row["rung"], row["method"]) == (rung, name)]
            if not rows:
                continue
            drawn = look(name, names)
            # The geometric middle of a bin; its first has none, and is drawn at half its end.
            shift = 1.05 ** (index - (len(names) - 1) / 2)
            x = [shift * np.sqrt(max(row["start"], row["stop"] / 4) * row["stop"]) for row in rows]
            y = [row["difference"] for row in rows]
            errors = [1.96 * (row["standard_error"] or 0.0) for row in rows]
            line = axes.errorbar(x, y, errors, **drawn.both, elinewidth=0.6, capsize=1.2, lw=0.9)
            handles.setdefault(drawn.label, line)
        axes.axhline(0, color=GUIDE, lw=0.6, zorder=0)
        axes.set_xscale("log", base=2)
        thousands(axes.xaxis)
        axes.set(xlabel="position (tokens)")
        axes.set_title(rung, pad=3)
    panels[0].set_ylabel(f"loss less {method_label(comparison.baseline)}'s (nats per token)")
    labels = [label for name in names if (label := look(name, names).label) in handles]
    figure.legend([handles[label] for label in labels], labels, loc="outside upper center", ncols=5)
    return figure
