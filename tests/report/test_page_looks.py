"""The report page in the dark, on a phone and on paper."""

import pytest

from tests.report.pages import CHARTS, background, in_browser, luminance, picture, run_names, text, tip

pytestmark = pytest.mark.slow


@in_browser
def test_dark_follows_the_system_until_it_is_chosen(browser, file):
    browser.open(file.as_uri())
    assert background(browser) > 0.9
    assert text(browser, "#theme") == "Dark"
    browser.media(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    assert background(browser) < 0.15
    ink = luminance(browser.run("getComputedStyle(document.querySelector('#losses svg text.strong')).fill"))
    assert ink > 0.7
    assert text(browser, "#theme") == "Light"
    browser.click("#theme")
    assert background(browser) > 0.9
    browser.wait("location.hash.includes('theme=light')")


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(browser, file, scheme):
    browser.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    browser.screen(390, 844, mobile=True)
    browser.open(file.as_uri())
    assert browser.run("document.documentElement.scrollWidth") == 390
    right = "[...document.querySelectorAll('.plot > svg')].map((node) => node.getBoundingClientRect().right)"
    assert max(browser.run(right)) <= 390
    beyond = (
        "[...document.querySelectorAll('.plot > svg text')].filter((node) => node.checkVisibility() &&"
        " node.getBoundingClientRect().right > node.closest('svg').getBoundingClientRect().right + 1)"
        ".map((node) => node.textContent)"
    )
    assert browser.run(beyond) == []
    assert all(len(picture(browser, section)) > 500 for section in CHARTS)
    x, y = browser.middle("#bands .plot > svg")
    browser.touch(x, y)
    assert tip(browser, "bands").startswith("band ")
    low, high = browser.run(
        "(() => { const box = document.querySelector('#bands .tip:not([hidden])').getBoundingClientRect();"
        " return [box.left, box.right]; })()"
    )
    assert low >= 0
    assert high <= 390


@in_browser
def test_on_paper_everything_is_open_and_nothing_can_be_pressed(browser, file):
    browser.open(file.as_uri())
    opened = "[...document.querySelectorAll('details.origin')].filter((node) => node.open).length"
    assert browser.run(opened) == 0
    rows = "[...document.querySelectorAll('#runs tbody tr')].filter((node) => node.checkVisibility()).length"
    browser.run(f"addEventListener('beforeprint', () => {{ window.opened = {opened}; window.rows = {rows}; }})")
    paper = browser.paper()
    assert paper.startswith(b"%PDF")
    assert browser.run("window.opened") == len(run_names(browser)) + 1
    assert browser.run("window.rows") == len(run_names(browser)) > browser.run(rows)
    assert browser.run(opened) == 0
    browser.send("Emulation.setEmulatedMedia", media="print")
    browser.settle()
    try:
        controls = "[...document.querySelectorAll('input, #theme, #play, .data, nav a')]"
        pressable = f"{controls}.filter((node) => node.checkVisibility()).length"
        assert browser.run(pressable) == 0
        assert background(browser) > 0.999
    finally:
        browser.send("Emulation.setEmulatedMedia", media="")
