"""The text of an HTML page, as a reader sees it: paragraphs, without scripts, styles and tags."""

import re
from html.parser import HTMLParser

# Not shown, or not text.
_HIDDEN = {"script", "style", "template", "noscript", "title", "svg", "math", "iframe", "object", "select"}
# What begins and ends with a blank line around it, and what begins on a new line.
_PARAGRAPHS = {
    *("address", "article", "aside", "blockquote", "body", "details", "div", "dl", "fieldset", "figure", "footer"),
    *("form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "main", "nav", "ol", "p", "pre", "section", "table"),
    *("ul",),
}
_LINES = {"br", "caption", "dd", "dt", "figcaption", "li", "option", "summary", "tr"}
_CELLS = {"td", "th"}
_SPACE = re.compile(r"[ \t\n\r\f]+")


def html_text(page: str) -> str:
    """Paragraphs apart by blank lines, list items and table rows by lines, cells by tabs; `pre` keeps its spaces."""
    parser = _Page()
    parser.feed(page)
    parser.close()
    return "".join(parser.parts).strip()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._before = ""
        """White space to write before the next text."""
        self._hidden: str | None = None
        self._depth = 0
        """Of elements like the hidden one within it, itself included."""
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if self._hidden is not None:
            self._depth += tag == self._hidden
        elif tag in _HIDDEN:
            self._hidden, self._depth = tag, 1
        else:
            self._pre += tag == "pre"
            self._separate(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._hidden is None:
            self._pre = max(0, self._pre - (tag == "pre"))
            self._separate(tag)
        elif tag == self._hidden:
            self._depth -= 1
            self._hidden = self._hidden if self._depth else None

    def handle_data(self, data: str) -> None:
        if self._hidden is not None:
            return
        if not self._pre:
            data = _SPACE.sub(" ", data)
            if data.startswith(" "):
                self._before, data = self._before or " ", data[1:]
        if not data:
            return
        ends = not self._pre and data.endswith(" ")
        self.parts += [self._before, data[:-1] if ends else data]
        self._before = " " if ends else ""

    def _separate(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self._before = "\n\n"
        elif tag in _LINES and self._before != "\n\n":
            self._before = "\n"
        elif tag in _CELLS and "\n" not in self._before:
            self._before = "\t"
