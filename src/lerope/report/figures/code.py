"""The frequency analysis of runs on code."""

from typing import Any

from lerope.report.collect import Bundle
from lerope.report.figures.contributions import draw_curves, has_curves
from lerope.report.figures.inputs import code_runs, group, largest, method, train_length, wavelengths
from lerope.report.figures.wavelengths import compare_runs
from lerope.report.style import COLUMN, PAGE, letter, missing, new_figure, say, styled

NAME = "code"
TITLE = "Learned frequencies on code"
CAPTION = (
    "a: learned wavelengths against RoPE's of runs on code, by train length; grey crosses are the dominant wavelengths "
    "that the paper prints for StarCoder-Python, 5,250 and 16,627 tokens at train lengths of 2,048 and 8,192. b: what "
    "bands add to the logits by distance in the run with the shortest rows; the shade is one standard deviation "
    "between layers."
)
_SIZE = (PAGE, 2.8)
_PRINTED = {2048: 5250.0, 8192: 16627.0}
_WORDS = "trained on a folder of data whose name has code or python in it"


@styled
def draw(bundle: Bundle) -> Any:
    """Both panels."""
    runs = [files for files in code_runs(bundle) if method(files) == "lerope"]
    learned = [files for files in runs if wavelengths(files) is not None]
    if not learned:
        return missing(
            *_SIZE,
            f"No LeRoPE run on code, that is one {_WORDS}:\nlerope train RUNG --data data/code, lerope analyze RUN",
        )
    figure = new_figure(*_SIZE)
    left, right = figure.subplots(1, 2, width_ratios=[0.8, 1.2])
    lengths = sorted(group(learned, train_length).values(), key=lambda some: train_length(some[0]))
    chosen = [found for some in lengths if (found := largest(some)) is not None]
    compare_runs(left, chosen, lambda files: f"L = {train_length(files):,}", "", _PRINTED.get, "paper, StarCoder")
    left.set(xlabel="RoPE's wavelength (tokens)", ylabel="learned wavelength (tokens)")
    measured = next((files for files in chosen if has_curves(files)), None)
    if measured is None:
        say(right, "Contributions of bands were not measured:\nlerope analyze RUN --parts bands", COLUMN)
    else:
        draw_curves(right, measured)
        right.set_ylabel("contribution to the logit")
    letter(left, "a")
    letter(right, "b")
    return figure
