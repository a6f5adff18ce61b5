"""The frequency analysis of runs on code."""

from typing import Any

from lerope.core.grouping import grouped
from lerope.paper.numbers import CODE_WAVELENGTHS
from lerope.report.bands import wavelengths
from lerope.report.collect import Bundle
from lerope.report.figures.contributions import draw_curves, has_curves
from lerope.report.figures.wavelengths import compare_runs
from lerope.report.groups import code_runs, largest, method, train_length
from lerope.report.style import COLUMN, PAGE, Missing, letter, new_figure, styled

NAME = "code"
TITLE = "Learned frequencies on code"
CAPTION = (
    "a: learned wavelengths of runs on code against RoPE's, by train length; grey crosses are the dominant wavelengths "
    "that the paper prints for StarCoder-Python, "
    f"{' and '.join(f'{value:,.0f} tokens at {length:,}' for length, value in CODE_WAVELENGTHS.items())}. b: what "
    "bands add to the logits by distance in the run with the shortest rows, where it was measured; the shade is one "
    "standard deviation between layers."
)
_HEIGHT = 2.8


@styled
def draw(bundle: Bundle) -> Any:
    """Both panels."""
    runs = [files for files in code_runs(bundle) if method(files) == "lerope"]
    learned = [files for files in runs if wavelengths(files) is not None]
    if not learned:
        raise Missing(
            "There is no LeRoPE run on code",
            "lerope data prepare python: --out data/code, lerope train RUNG --data data/code, lerope analyze RUN",
        )
    lengths = sorted(grouped(learned, train_length).values(), key=lambda some: train_length(some[0]))
    chosen = [found for some in lengths if (found := largest(some)) is not None]
    measured = next((files for files in chosen if has_curves(files)), None)
    if measured is None and len(code_runs(bundle)) == len(bundle.runs):
        text = "All runs are on code, so `wavelengths` has theirs; what their bands add was not measured"
        raise Missing(text, "lerope analyze RUN --parts bands")
    ratios = [1.0] if measured is None else [0.8, 1.2]
    figure = new_figure(COLUMN if measured is None else PAGE, _HEIGHT)
    left, *others = figure.subplots(1, len(ratios), squeeze=False, width_ratios=ratios)[0]
    compare_runs(left, chosen, lambda files: f"L = {train_length(files):,}", CODE_WAVELENGTHS.get, "paper, StarCoder")
    left.set(xlabel="RoPE's wavelength (tokens)", ylabel="learned wavelength (tokens)")
    if measured is not None:
        draw_curves(others[0], measured)
        others[0].set_ylabel("contribution to the logit")
        letter(left, "a")
        letter(others[0], "b")
    return figure
