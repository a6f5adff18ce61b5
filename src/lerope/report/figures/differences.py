"""How far every method's loss is from the baseline's, with its interval: what a verdict stands on."""

from typing import Any

from lerope.paper.numbers import RUNGS
from lerope.paper.recomputed import losses as printed_losses
from lerope.report.collect import Bundle
from lerope.report.measured import effects, interval
from lerope.report.style import PAGE, PAPER, Missing, look, method_label, new_figure, plain_methods, styled

NAME = "differences"
TITLE = "Loss against the baseline"
CAPTION = (
    "Each method's evaluated loss less the baseline's, paired by seed and document, with the 95 % interval over both; "
    "over documents alone, with an open marker, where there is one seed. Left of zero the method is better. Grey "
    "diamonds are the same differences from the perplexities that the paper prints. Of many methods only the plain are "
    "drawn; the table `differences` has all."
)
_ROW, _REST, _LEAST, _MOST = 0.23, 0.95, 1.4, 6


@styled
def draw(bundle: Bundle) -> Any:
    """One row per rung and method, the smallest rung above."""
    from matplotlib.lines import Line2D

    comparison = bundle.comparison
    if comparison is None or not comparison.effects:
        raise Missing("Two methods at one rung are needed, both evaluated", "lerope eval RUN ...")
    names = plain_methods((effect["method"] for effect in comparison.effects), _MOST)
    shown = [effect for effect in effects(comparison) if effect["method"] in names]
    figure = new_figure(PAGE, max(_LEAST, _REST + _ROW * len(shown)))
    axes = figure.subplots()
    printed = _printed() if comparison.baseline == "rope" else {}
    marked = False
    for row, effect in enumerate(shown):
        drawn, (low, high) = look(effect["method"], names), interval(effect)
        fill = drawn.colour if effect["num_seeds"] > 1 else "white"
        axes.plot([low, high], [row, row], color=drawn.colour, lw=1.4, solid_capstyle="butt")
        axes.plot(effect["difference"], row, ls="", color=drawn.colour, marker=drawn.marker, ms=5, mfc=fill)
        value = printed.get((effect["rung"], effect["method"]))
        if value is not None:
            axes.plot(value, row + 0.3, "D", color=PAPER, ms=3, zorder=1)
            marked = True
    axes.axvline(0, color="0.3", lw=0.8, zorder=0)
    several = [f"{effect['num_seeds']} seed{'s' * (effect['num_seeds'] > 1)}" for effect in shown]
    labels = [f"{e['rung']}, {look(e['method'], names).label} ({n})" for e, n in zip(shown, several, strict=True)]
    axes.set_yticks(range(len(shown)), labels)
    axes.set_ylim(len(shown) - 0.3, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_xlabel(f"loss less {method_label(comparison.baseline)}'s (nats per token)")
    if marked:
        handle = Line2D([], [], ls="", marker="D", color=PAPER, ms=3, label="the paper's")
        figure.legend(handles=[handle], loc="outside upper right")
    return figure


def _printed() -> dict[tuple[str, str], float]:
    """The paper's differences from RoPE, by rung and method."""
    _, losses = printed_losses()
    return {
        (place, name): float(values[at] - losses["rope"][at])
        for name, values in losses.items()
        for at, place in enumerate(RUNGS)
        if name != "rope"
    }
