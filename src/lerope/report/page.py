"""The page: one HTML file that holds its style, its script and its data, and makes no requests."""

import base64
import hashlib
import html
import json
from importlib.resources import files
from typing import Any

_SCRIPTS = (
    "scales.js",
    "plot.js",
    "charts.js",
    "maps.js",
    "common.js",
    "runs.js",
    "losses.js",
    "frequencies.js",
    "bands.js",
    "removals.js",
    "needles.js",
    "extrapolation.js",
    "multipliers.js",
    "provenance.js",
    "main.js",
)
# What JSON may hold but a script element may not, and the two line ends JavaScript once did not take in strings.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def render(data: dict[str, Any], live: bool = False) -> str:
    """The whole file.

    Args:
        data: what `lerope.report.payload.payload` gives.
        live: whether the page may ask the server it came from for newer data.
    """
    style = _read("style.css")
    script = "(() => {\n" + '"use strict";\n' + "\n".join(map(_read, _SCRIPTS)) + "})();"
    # Only this very style and script are allowed, so that even text that became HTML by mistake could not run.
    policy = [
        "default-src 'none'",
        f"style-src '{_digest(style)}'",
        f"script-src '{_digest(script)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "connect-src 'self'" if live else "connect-src 'none'",
    ]
    parts = {
        "policy": html.escape("; ".join(policy), quote=False),
        "title": html.escape(f"{data['title']} · lerope"),
        "style": style,
        "data": embedded(data),
        "script": script,
    }
    before, *rest = _read("page.html").split("@")
    page = [before]
    for at in range(0, len(rest), 2):
        page += [parts[rest[at]], rest[at + 1]]
    return "".join(page)


def embedded(data: dict[str, Any]) -> str:
    """JSON that no text in it can end early."""
    return as_json(data).translate(_ESCAPES)


def as_json(data: dict[str, Any]) -> str:
    """Compact JSON."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _read(name: str) -> str:
    return (files("lerope.report") / "page" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
