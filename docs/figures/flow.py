"""Draws docs/figures/flow.svg: from text to a page and to engines, with the command on each way."""

from pathlib import Path

from svg import Drawing

WIDTH, HEIGHT = 176, 84


def station(drawing: Drawing, x: float, y: float, name: str, lines: tuple[str, str], edge: str) -> None:
    drawing.box(x, y, WIDTH, HEIGHT, "box", edge)
    drawing.text(x + WIDTH / 2, y + 28, name, edge if edge != "rule" else "ink", 18, "middle", bold=True)
    for number, words in enumerate(lines):
        drawing.text(x + WIDTH / 2, y + 50 + 19 * number, words, "dim", 14, "middle")


def main() -> None:
    drawing = Drawing(
        720, 480, "Text becomes data, data a run, a run results and a page; a run also becomes what engines read"
    )
    drawing.text(24, 30, "What each command reads and leaves", bold=True)
    xs, ys = (24, 272, 520), (72, 218, 364)
    station(drawing, xs[0], ys[0], "text", ("files, folders,", "datasets"), "rule")
    station(drawing, xs[1], ys[0], "data", ("tokenizer, shards,", "manifest"), "blue")
    station(drawing, xs[2], ys[0], "run", ("model, records,", "frequencies.json"), "blue")
    station(drawing, xs[2], ys[1], "results", ("one typed file", "a measurement"), "green")
    station(drawing, xs[1], ys[1], "answers", ("verdicts, multipliers,", "figures, one page"), "green")
    station(drawing, xs[1], ys[2], "served", ("Hugging Face folder", "or GGUF"), "orange")
    station(drawing, xs[0], ys[2], "engines", ("vLLM, llama.cpp,", "transformers …"), "orange")
    middle = HEIGHT / 2
    for column, command in ((0, "data prepare"), (1, "train")):
        x = xs[column] + WIDTH
        drawing.arrow((x + 5, ys[0] + middle), (x + 67, ys[0] + middle))
        drawing.text(x + 36, ys[0] - 12, command, "ink", 15, "middle")
    drawing.arrow((xs[2] + 60, ys[0] + HEIGHT + 5), (xs[2] + 60, ys[1] - 6))
    drawing.text(xs[2] + 70, ys[0] + HEIGHT + 28, "eval, needle,", "ink", 15)
    drawing.text(xs[2] + 70, ys[0] + HEIGHT + 48, "analyze …", "ink", 15)
    drawing.arrow((xs[2] - 5, ys[1] + middle), (xs[1] + WIDTH + 6, ys[1] + middle))
    drawing.text(xs[1] + WIDTH, ys[1] - 10, "compare, report", "ink", 15, "middle")
    drawing.line([(xs[2] + WIDTH + 1, ys[0] + middle), (708, ys[0] + middle), (708, ys[2] + middle)], "dim", 1.8)
    drawing.arrow((708, ys[2] + middle), (xs[1] + WIDTH + 6, ys[2] + middle))
    drawing.text(xs[2] + 80, ys[2] + middle - 10, "export", "ink", 15, "middle")
    drawing.arrow((xs[1] - 5, ys[2] + middle), (xs[0] + WIDTH + 6, ys[2] + middle))
    drawing.text(xs[0] + WIDTH + 36, ys[2] - 10, "verify", "ink", 15, "middle")
    drawing.save(Path(__file__).with_suffix(".svg"))


if __name__ == "__main__":
    main()
