"""A drawing of lines, boxes and words as SVG. It brings its own background, so that it can be read on any page, and has
a dark palette for readers whose system asks for one."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

# Light and dark; the four colours are Okabe and Ito's, lightened for the dark one.
PALETTE = {
    "paper": ("#ffffff", "#17191c"),
    "box": ("#f3f5f7", "#24282d"),
    "ink": ("#1c1e21", "#e8eaed"),
    "dim": ("#5b6168", "#a3abb4"),
    "rule": ("#c9ced4", "#464c54"),
    "blue": ("#0072b2", "#56b4e9"),
    "orange": ("#c2410c", "#ff9d5c"),
    "green": ("#00795a", "#35c79c"),
}
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


class Drawing:
    """Collects elements; colours are names of the palette."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        colour: str = "ink",
        size: int = 16,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
        self.parts.append(f'<text class="f-{colour}" {place}{weight}>{escape(words)}</text>')

    def line(
        self, points: Sequence[tuple[float, float]], colour: str = "rule", width: float = 1.5, dash: str = ""
    ) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline class="s-{colour}" points="{path}" stroke-width="{width}"{dashed}/>')

    def arrow(self, start: tuple[float, float], end: tuple[float, float], colour: str = "dim") -> None:
        place = f'x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}"'
        self.parts.append(f'<line class="s-{colour}" {place} stroke-width="1.8" marker-end="url(#head)"/>')

    def box(self, x: float, y: float, width: float, height: float, fill: str = "box", edge: str = "rule") -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6"'
        self.parts.append(f'<rect class="f-{fill} s-{edge}" {place} stroke-width="1.5"/>')

    def circle(self, x: float, y: float, radius: float, fill: str = "paper", edge: str = "rule") -> None:
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        self.parts.append(f'<circle class="f-{fill} s-{edge}" {place} stroke-width="1.5"/>')

    def save(self, path: Path) -> None:
        def rules(which: int) -> str:
            fills = "".join(f".f-{name}{{fill:{pair[which]}}}" for name, pair in PALETTE.items())
            return fills + "".join(f".s-{name}{{stroke:{pair[which]}}}" for name, pair in PALETTE.items())

        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" font-family="{FONT}">',
            f"<title>{escape(self.title)}</title>",
            f"<style>polyline{{fill:none;stroke-linejoin:round;stroke-linecap:round}}{rules(0)}"
            f"@media (prefers-color-scheme: dark){{{rules(1)}}}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path class="f-dim" d="M0,0.5 L8,4 L0,7.5 Z"/></marker></defs>',
            f'<rect class="f-paper" width="{self.width}" height="{self.height}" rx="8"/>',
            *self.parts,
            "</svg>",
        ]
        path.write_text("\n".join(lines) + "\n")
        print(f"wrote {path.name}")
