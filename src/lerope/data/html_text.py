"""The text of an HTML page, as a reader sees it: paragraphs, without scripts, styles and tags.

Its own small parser and not Python's, which takes quadratic time on tags that do not end, and raises on odd
declarations.
"""

import html
import re
from collections.abc import Iterator

# Not shown, or not text; no markup is read in the first few.
_RAW = {"script", "style", "title", "textarea"}
_HIDDEN = {*_RAW, "template", "noscript", "svg", "math", "iframe", "object", "select"}
# What has a blank line around it, and what begins on a new line.
_PARAGRAPHS = {
    *("address", "article", "aside", "blockquote", "body", "details", "div", "dl", "fieldset", "figure", "footer"),
    *("form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "main", "nav", "ol", "p", "pre", "section", "table"),
    *("ul",),
}
_LINES = {"br", "caption", "dd", "dt", "figcaption", "li", "summary", "tr"}
_CELLS = {"td", "th"}
_MARKUP = re.compile(r"<(?:(?P<comment>!--)|(?P<declaration>[!?])|(?P<slash>/?)(?P<tag>[a-zA-Z][^\s/><]{0,50}))")
_QUOTE_OR_END = re.compile(r"[\"'>]")
_SPACE = re.compile(r"[ \t\n\r\f]+")


def html_text(page: str) -> str:
    """Paragraphs apart by blank lines, list items and table rows by lines, cells by tabs; `pre` keeps its spaces."""
    shown = _Shown()
    for text, slash, tag in _pieces(page):
        shown.add(text)
        shown.end(tag) if slash else shown.begin(tag)
    return "".join(shown.parts).strip()


def _pieces(page: str) -> Iterator[tuple[str, str, str]]:
    """Each text with the tag that follows it, and `/` where that ends something; linear in the page's length."""
    at = 0
    while found := _MARKUP.search(page, at):
        tag = (found["tag"] or "").lower()
        yield html.unescape(page[at : found.start()]), found["slash"] or "", tag
        if found["comment"]:
            close = page.find("-->", found.end())
            at = len(page) if close < 0 else close + 3
        else:
            at = _tag_end(page, found.end())
        if tag in _RAW and not found["slash"]:
            found = re.compile(f"</{tag}", re.IGNORECASE).search(page, at)
            at = found.start() if found else len(page)
    yield html.unescape(page[at:]), "", ""


def _tag_end(page: str, start: int) -> int:
    """Behind the `>` that ends a tag, which is none of those in quotes."""
    at = start
    while found := _QUOTE_OR_END.search(page, at):
        if found[0] == ">":
            return found.end()
        at = page.find(found[0], found.end()) + 1
        if not at:  # a quote without an end is no quote
            break
    return page.find(">", start) + 1 or len(page)


class _Shown:
    """Text so far, and the white space to write before the next."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._before = ""
        self._hidden: str | None = None
        self._depth = 0
        """Of elements like the hidden one within it, itself included."""
        self._pre = 0

    def begin(self, tag: str) -> None:
        if self._hidden is not None:
            self._depth += tag == self._hidden
        elif tag in _HIDDEN:
            self._hidden, self._depth = tag, 1
        else:
            self._pre += tag == "pre"
            self._separate(tag)

    def end(self, tag: str) -> None:
        if self._hidden is None:
            self._pre = max(0, self._pre - (tag == "pre"))
            self._separate(tag)
        elif tag == self._hidden:
            self._depth -= 1
            self._hidden = self._hidden if self._depth else None

    def add(self, text: str) -> None:
        if self._hidden is not None:
            return
        if not self._pre:
            text = _SPACE.sub(" ", text)
            if text.startswith(" "):
                self._before, text = self._before or " ", text[1:]
        if not text:
            return
        ends = not self._pre and text.endswith(" ")
        self.parts += [self._before, text[:-1] if ends else text]
        self._before = " " if ends else ""

    def _separate(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self._before = "\n\n"
        elif tag in _LINES and self._before != "\n\n":
            self._before = "\n"
        elif tag in _CELLS and "\n" not in self._before:
            self._before = "\t"
