"""Draws docs/figures/band.svg: a head of eight dimensions as four bands, each of which turns at its own rate."""

import math
from pathlib import Path

from svg import Drawing

HEAD_DIM, BASE = 8, 10_000.0
POSITIONS = (0, 1, 2, 3, 4, 5, 6, None, 100, 1000)
COLOURS = ("blue", "green", "orange", "dim")
LEFT, TOP, STEP, ROW, RADIUS = 122, 196, 44, 60, 18


def main() -> None:
    bands = HEAD_DIM // 2
    drawing = Drawing(720, 492, "A query of eight dimensions, its four bands, and how far each has turned by position")
    drawing.text(24, 36, "One query of a head with 8 dimensions", bold=True)
    for dim in range(HEAD_DIM):
        x = LEFT + dim * 58
        colour = COLOURS[dim % bands]
        drawing.box(x, 52, 50, 34, "box", colour)
        drawing.text(x + 25, 75, f"x{dim}", colour, 16, "middle", bold=True)
    drawing.text(
        24, 112, f"Band m is the pair x(m), x(m + {bands}): an arrow in a plane. The token at position s", "dim", 15
    )
    drawing.text(24, 132, "has it turned by s × θ(m).", "dim", 15)
    for column, position in enumerate(POSITIONS):
        label = "…" if position is None else f"{position:,}"
        drawing.text(LEFT + column * STEP, TOP - 26, label, "dim", 14, "middle")
    drawing.text(24, TOP - 26, "position", "dim", 14)
    drawing.text(LEFT + len(POSITIONS) * STEP - 6, TOP - 26, "one turn in", "dim", 14)
    for band in range(bands):
        frequency = BASE ** (-2 * band / HEAD_DIM)
        y, colour = TOP + 8 + band * ROW, COLOURS[band]
        drawing.text(24, y + 5, f"band {band}", colour, 16, bold=True)
        for column, position in enumerate(POSITIONS):
            if position is None:
                continue
            x, angle = LEFT + column * STEP, position * frequency
            drawing.circle(x, y, RADIUS)
            tip = (x + 0.82 * RADIUS * math.cos(angle), y - 0.82 * RADIUS * math.sin(angle))
            drawing.line([(x, y), tip], colour, 3.2)
        drawing.text(LEFT + len(POSITIONS) * STEP - 6, y + 5, f"{2 * math.pi / frequency:,.0f} tokens", colour, 16)
    y = TOP + bands * ROW + 4
    drawing.text(24, y, "Query times key then depends only on the distance between their tokens.", "dim", 15)
    drawing.text(
        24, y + 26, "RoPE sets the four rates by hand. LeRoPE learns them: exp(α(m)) × θ(m).", "ink", 16, bold=True
    )
    drawing.save(Path(__file__).with_suffix(".svg"))


if __name__ == "__main__":
    main()
