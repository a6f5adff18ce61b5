"""One look for all figures: sizes of a paper's columns, colours that everyone can tell apart, reproducible files.

matplotlib is imported when something is drawn, and never through pyplot: drawing leaves no state behind.
"""

import functools
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

from lerope.core.encoding import EncodingSpec
from lerope.core.extras import install
from lerope.core.files import whole

Arguments = ParamSpec("Arguments")

COLUMN, PAGE = 3.3, 6.8
"""Widths in inches: one column of a paper, and both."""

# Okabe and Ito's palette.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, BLACK, VERMILLION)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PAPER = "0.55"
"""The grey of the paper's own numbers."""
GUIDE = "0.6"
"""The grey of guide lines."""
MAP = "cividis"
"""The colours of maps: they grow lighter evenly, also in print without colour."""

FORMATS = ("pdf", "svg", "png")
_RESOLUTION = 300
_SETTINGS: dict[str, Any] = {
    "font.size": 8,
    "font.family": "DejaVu Sans",
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.borderaxespad": 0.3,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "grid.color": "0.92",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "text.usetex": False,
    "pdf.fonttype": 42,
    "svg.hashsalt": "lerope",
    "savefig.facecolor": "white",
    # Room around a figure, inches: on a dark page its paper is a card.
    "figure.constrained_layout.w_pad": 0.07,
    "figure.constrained_layout.h_pad": 0.07,
}
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"Creator": "lerope", "Producer": None, "CreationDate": None},
    "svg": {"Creator": "lerope", "Date": None},
    "png": {"Software": None},
}


class Missing(Exception):  # noqa: N818 (what is the case, like StopIteration)
    """There is nothing to draw: what is missing, and the command that makes it."""

    def __init__(self, text: str, command: str) -> None:
        super().__init__(text)
        self.text, self.command = text, command


@dataclass(frozen=True)
class Look:
    """How a method is always drawn."""

    label: str
    colour: str
    marker: str
    line: Any
    """As matplotlib's `linestyle`."""
    filled: bool = True

    @property
    def points(self) -> dict[str, Any]:
        """For markers."""
        return {"color": self.colour, "marker": self.marker, "mfc": self.colour if self.filled else "white"}

    @property
    def both(self) -> dict[str, Any]:
        """For lines with markers."""
        return {**self.points, "linestyle": self.line}

    @property
    def stroke(self) -> dict[str, Any]:
        """For lines."""
        return {"color": self.colour, "linestyle": self.line}


_FAMILIES: dict[str, tuple[str, str, Any]] = {
    "rope": (BLUE, "o", "-"),
    "prope": (ORANGE, "s", "--"),
    "lerope": (VERMILLION, "^", (0, (5, 1, 1, 1))),
    "frozen": (GREEN, "D", (0, (3, 1, 1, 1, 1, 1))),
    "preset": (SKY, "X", (0, (6, 2, 2, 2))),
    "nope": (PURPLE, "v", ":"),
}
_VARIANTS: tuple[tuple[str, Any], ...] = (
    ("h", (0, (1, 1))),
    ("<", (0, (2, 2))),
    (">", (0, (7, 2))),
    ("p", (0, (4, 4))),
)


def method_label(method: str) -> str:
    """A method in words for people."""
    return EncodingSpec.parse(method).label


def look(method: str, others: Iterable[str] = ()) -> Look:
    """How a method is drawn.

    Args:
        method: an encoding, or a method of a comparison.
        others: every method of the figure, so that variants of one method are told apart.
    """
    spec = EncodingSpec.parse(method)
    colour, marker, line = _FAMILIES.get(spec.family, (BLACK, "P", "-"))
    is_plain = spec.method in _FAMILIES
    if not is_plain:
        variants = sorted({other for other in others if other not in _FAMILIES} | {method})
        marker, line = _VARIANTS[variants.index(method) % len(_VARIANTS)]
    return Look(spec.label, colour, marker, line, filled=is_plain)


def order(methods: Iterable[str]) -> list[str]:
    """Methods as figures and tables list them: RoPE and variants, p-RoPE's, LeRoPE's, frozen, presets, NoPE, others."""
    return sorted(dict.fromkeys(methods), key=place)


def place(method: str) -> tuple[int, str]:
    """A key that sorts methods this way."""
    family, families = EncodingSpec.parse(method).family, list(_FAMILIES)
    return families.index(family) if family in families else len(families), method


def plain_methods(methods: Iterable[str], most: int) -> list[str]:
    """Methods in order, at most `most`; their variants only where there is room."""
    names = order(methods)
    return sorted(sorted(names, key=lambda name: bool(EncodingSpec.parse(name).options))[:most], key=names.index)


def styled(draw: Callable[Arguments, Any]) -> Callable[Arguments, Any]:
    """A drawing function that uses this style; without matplotlib it raises one sentence."""

    @functools.wraps(draw)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
        with _matplotlib().rc_context(_SETTINGS):
            return draw(*args, **kwargs)

    return wrapped


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, in inches, that arranges its own parts."""
    _matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def said(found: Missing) -> Any:
    """A figure that says what is missing, and in a line of its own which command makes it."""
    figure = new_figure(PAGE, 1.5)
    say(figure.add_subplot(), f"{found.text}:\n{found.command}", PAGE)
    return figure


def say(axes: Any, text: str, width: float = COLUMN) -> None:
    """Fills a panel with a sentence instead of data.

    Args:
        width: of the panel, in inches.
    """
    axes.set_axis_off()
    size = max(16, int(width * 15))
    lines = [textwrap.fill(part, size, break_long_words=False, break_on_hyphens=False) for part in text.split("\n")]
    axes.text(0.5, 0.5, plain("\n".join(lines)), ha="center", va="center", color="0.35", transform=axes.transAxes)


def plain(text: str) -> str:
    """Text that may be anything, such as a run's name: a dollar sign starts no formula."""
    return text.replace("$", r"\$")


def letter(axes: Any, text: str) -> None:
    """A panel's letter, above its top left corner."""
    axes.set_title(text, loc="left", fontweight="bold", pad=4)


def thousands(axis: Any) -> None:
    """Labels of an axis with commas, and no powers of ten."""
    axis.set_major_formatter("{x:,.0f}")


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Writes a figure as PDF, SVG and PNG; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    return [save_as(figure, folder / f"{name}.{ending}") for ending in FORMATS]


def save_as(figure: Any, file: Path) -> Path:
    """Writes a figure in the format that the file's name ends with."""
    ending = file.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise ValueError(f"a figure's file must end with one of .{', .'.join(FORMATS)}; got {file}.")
    with _matplotlib().rc_context(_SETTINGS), whole(file) as partial:
        figure.savefig(partial, format=ending, dpi=_RESOLUTION, metadata=_METADATA[ending])
    return file


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ValueError(f"figures need the package matplotlib; install it with `{install('plots')}`.") from None
    return matplotlib
