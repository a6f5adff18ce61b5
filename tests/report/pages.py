"""What tests of the report page share: how to find and read its parts."""

import json
import re

import pytest

from tests.report.browser import CHROMIUM

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


SCRIPT = "<script>alert(1)</script>"


# Sections that have a chart for the example's runs, and how to find a point of it.
CHARTS = ("verdict", "losses", "frequencies", "bands", "phasors", "ablation", "needles", "extrapolation", "multipliers")


def box_of(browser, name):
    return f"#runs tr:nth-child({1 + run_names(browser).index(name)}) input"


def run_names(browser):
    return browser.run("[...document.querySelectorAll('#runs tbody .name')].map((cell) => cell.textContent)")


def ticked(browser):
    return browser.run(
        "[...document.querySelectorAll('#runs tbody tr')].filter((row) => row.querySelector('input').checked)"
        ".map((row) => row.querySelector('.name').textContent)"
    )


def text(browser, selector):
    return browser.run(f"document.querySelector({json.dumps(selector)}).innerText")


def tip(browser, section):
    """What the tooltip of a section's charts says, in one line; empty if none is there."""
    return " ".join(browser.run(f"document.querySelector('#{section} .tip:not([hidden])')?.innerText ?? ''").split())


def picture(browser, section):
    """All charts of a section as text, to see whether they changed."""
    return browser.run(
        f"[...document.querySelectorAll('#{section} .plot > svg')].filter((node) => node.checkVisibility())"
        ".map((node) => node.innerHTML).join('')"
    )


def luminance(color):
    red, green, blue = (int(value) for value in re.findall(r"\d+", color)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def background(browser):
    return luminance(browser.run("getComputedStyle(document.body).backgroundColor"))


def visible(browser, selector):
    return browser.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].filter((node) => node.checkVisibility()).length"
    )
