"""Draws docs/figures/distance.svg: what band 16 adds to a logit by distance, as RoPE has it and as it was learned."""

import math
from pathlib import Path

from svg import Drawing

from lerope.paper.numbers import DOMINANT_BANDS

# The paper's 217M model at train length 2,048, as its table of dominant bands prints it.
TRAIN_LENGTH, BAND, _, FREQUENCY, _, _ = DOMINANT_BANDS["217M, 2048"]
HEAD_DIM, BASE = 64, 10_000.0
LEFT, RIGHT, TOP, BOTTOM = 70, 690, 92, 300


def main() -> None:
    drawing = Drawing(
        720, 444, "cos(distance × frequency) of band 16: RoPE's turns three times in a row, the learned half a turn"
    )
    drawing.text(24, 36, "What band 16 adds to a logit, where query and key agree", bold=True)
    drawing.text(24, 58, "cos(θ × distance), times how strongly both use the band", "dim", 15)

    def at(distance: float, value: float) -> tuple[float, float]:
        x = LEFT + (RIGHT - LEFT) * distance / TRAIN_LENGTH
        return x, TOP + (BOTTOM - TOP) * (1 - value) / 2

    for value in (-1, 0, 1):
        drawing.line([at(0, value), at(TRAIN_LENGTH, value)], "rule", 1)
        drawing.text(LEFT - 10, at(0, value)[1] + 5, ("−1", "0", "+1")[value + 1], "dim", 14, "end")
    for distance in range(0, TRAIN_LENGTH + 1, 512):
        x, y = at(distance, -1)
        drawing.line([(x, y), (x, y + 6)], "rule", 1.5)
        drawing.text(x, y + 24, f"{distance:,}", "dim", 14, "middle")
    drawing.text(
        (LEFT + RIGHT) / 2, BOTTOM + 48, "tokens between query and key, up to the train length", "dim", 15, "middle"
    )

    rope, learned = BASE ** (-2 * BAND / HEAD_DIM), float(FREQUENCY)
    steps = range(0, TRAIN_LENGTH + 1, 4)
    drawing.line([at(d, math.cos(rope * d)) for d in steps], "blue", 2.6, "7 5")
    drawing.line([at(d, math.cos(learned * d)) for d in steps], "orange", 3.4)
    wave = 2 * math.pi / rope
    for turn in range(int(TRAIN_LENGTH // wave) + 1):
        drawing.circle(*at(turn * wave, 1), 5, "paper", "blue")
    y = BOTTOM + 84
    drawing.line([(24, y), (66, y)], "blue", 2.6, "7 5")
    drawing.text(78, y + 5, f"RoPE: one turn in {wave:,.0f} tokens. Circles: distances that look alike.", "ink", 16)
    drawing.line([(24, y + 34), (66, y + 34)], "orange", 3.4)
    slow = 2 * math.pi / learned
    words = f"learned: one turn in {slow:,.0f}. No two distances look alike."
    drawing.text(78, y + 39, words, "ink", 16)
    drawing.save(Path(__file__).with_suffix(".svg"))


if __name__ == "__main__":
    main()
