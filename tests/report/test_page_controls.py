"""The report page under mouse, finger and keys: ticks, folds, links, the slider, charts that are pointed at."""

import re

import pytest

from tests.report.example import ODD_NAME
from tests.report.pages import CHARTS, box_of, in_browser, picture, run_names, text, ticked, tip, visible

pytestmark = pytest.mark.slow


@in_browser
def test_a_tick_changes_every_chart_at_once(browser, file):
    browser.open(file.as_uri())
    before = {section: picture(browser, section) for section in CHARTS}
    browser.click(box_of(browser, "52M-lerope-42"))
    assert "52M-lerope-42" not in ticked(browser)
    same = [section for section in CHARTS if picture(browser, section) == before[section]]
    # The verdict is of the whole study; multipliers are of methods, and 52M-lerope-43 is still there.
    assert same == ["verdict", "multipliers"]
    browser.click(box_of(browser, "52M-lerope-43"))
    assert picture(browser, "multipliers") != before["multipliers"]
    for name in ("52M-lerope-43", "52M-lerope-42"):
        browser.click(box_of(browser, name))
    assert {section: picture(browser, section) for section in CHARTS} == before


@in_browser
def test_long_tables_fold_and_open_and_keep_what_is_ticked(browser, file):
    browser.open(file.as_uri())
    number = len(run_names(browser))
    rows = {"#runs tbody tr": 10, "#provenance details": 10, "#multipliers tbody tr": 2}
    assert {selector: visible(browser, selector) for selector in rows} == rows
    assert visible(browser, "#runs tbody input:checked") == len(ticked(browser)) == 6
    assert text(browser, "#runs .more") == f"Show all {number}"
    for section in ("runs", "provenance", "multipliers"):
        browser.click(f"#{section} .more")
        assert text(browser, f"#{section} .more") == "Show fewer"
    assert visible(browser, "#runs tbody tr") == visible(browser, "#provenance details") == number
    assert visible(browser, "#multipliers tbody tr") == 16
    browser.click(box_of(browser, "217M-rope-42"))
    browser.click("#runs .more")
    assert visible(browser, "#runs tbody tr") == 10
    assert visible(browser, "#runs tbody input:checked") == 7
    browser.click(box_of(browser, "217M-rope-42"))  # and it does not vanish under the pointer
    assert visible(browser, "#runs tbody tr") == 10


@in_browser
def test_no_tick_leaves_quiet_lines(browser, file):
    browser.open(file.as_uri() + "#runs=")
    assert ticked(browser) == []
    for section in CHARTS[1:8]:
        assert "No run is ticked" in text(browser, f"#{section}"), section
        assert picture(browser, section) == "", section


@in_browser
def test_the_key_ticks_too_and_a_dozen_is_the_most(browser, file):
    browser.open(file.as_uri())
    first = ticked(browser)[0]
    browser.click("#key button")
    assert first not in ticked(browser)
    browser.click("#runs .more")
    for name in run_names(browser):
        if len(ticked(browser)) < 12 and name not in ticked(browser):
            browser.click(box_of(browser, name))
    assert len(ticked(browser)) == 12
    left = next(name for name in run_names(browser) if name not in ticked(browser))
    browser.click(box_of(browser, left))
    assert len(ticked(browser)) == 12
    assert "as many as can be compared" in text(browser, "#runs")
    assert len(browser.run("[...document.querySelectorAll('#losses .legend li')].map((item) => item.innerText)")) >= 12


@in_browser
def test_a_link_shows_the_same_view(browser, file):
    browser.open(file.as_uri())
    browser.click(box_of(browser, "52M-rope-42"))
    browser.click(box_of(browser, ODD_NAME))
    browser.run("document.querySelector('#slider').focus()")
    for _ in range(5):
        browser.press("ArrowLeft")
    browser.click("#theme")
    browser.click("#ablation .choice:last-child input")
    browser.run("document.querySelector('#band').focus()")
    browser.press("ArrowRight")
    browser.wait("location.hash.includes('band=12')")
    address, shown = browser.run("location.href"), {section: picture(browser, section) for section in CHARTS}
    names = ticked(browser)
    browser.open(address)
    assert ticked(browser) == names
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    assert {section: picture(browser, section) for section in CHARTS} == shown


@in_browser
@pytest.mark.parametrize("rest", ["#at=9&band=-1&theme=pink&runs=nobody&section=x", "#%%%", "#runs&at=&band=NaN"])
def test_an_address_that_says_nonsense_is_no_harm(browser, file, rest):
    browser.open(file.as_uri() + rest)
    assert text(browser, "#slider ~ output, .controls output") in (
        "100 % of training",
        "step 3,840 of 3,840",
        "nothing here learns",
        "",
    )


@in_browser
def test_the_slider_goes_through_training(browser, file):
    browser.open(file.as_uri() + "#runs=52M-lerope-42")
    browser.run("document.querySelector('#frequencies .data').open = true")
    browser.settle()
    rows = (
        "[...document.querySelectorAll('#frequencies .data tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    end = browser.run(rows)
    assert len(end) == 32
    assert end[31][2] != end[31][3]
    assert text(browser, "#frequencies output") == "step 3,840 of 3,840"
    last = picture(browser, "frequencies")
    browser.run("document.querySelector('#slider').focus()")
    browser.press("Home")
    assert text(browser, "#frequencies output") == "step 0 of 3,840"
    assert all(rope == own for _, _, rope, own in browser.run(rows))  # where LeRoPE starts
    assert picture(browser, "frequencies") != last
    browser.wait("location.hash.includes('at=0')")
    browser.press("End")
    assert picture(browser, "frequencies") == last
    assert browser.run("document.querySelector('#slider').getAttribute('aria-valuetext')") == "step 3,840 of 3,840"


@in_browser
@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_play_goes_from_start_to_end(browser, file, motion):
    browser.media(prefers_reduced_motion=motion)
    browser.open(file.as_uri() + "#runs=52M-lerope-42")
    browser.click("#play")
    assert text(browser, "#play") == "Pause"
    assert browser.run("Number(document.querySelector('#slider').value)") < 0.5
    browser.wait("Number(document.querySelector('#slider').value) === 1")
    browser.wait("document.querySelector('#play').innerText === 'Play'")


@in_browser
@pytest.mark.parametrize(
    ("section", "wanted"),
    [
        ("verdict", r"(LeRoPE|Frozen|500,000|p-RoPE), \d seeds? difference .0\.\d{4} 95 %"),
        ("losses", r"^step [\d,]+ .*52M-rope-42 3\.\d{4}"),
        ("frequencies", r"band \d+.* wavelength [\d.,k]+ tokens RoPE's"),
        ("bands", r"^band \d+.* wavelength .* tokens .*between layers ± "),
        ("phasors", r"^(distance [\d,]+ of the largest \d+ %|resultant)"),
        ("ablation", r"^without band \d+ loss [+]0\.\d{4} ± 0\.\d{4} wavelength"),
        ("needles", r"^512 tokens, 7 distractors, depth 0\.\d exact match \d+ % 95 %"),
        ("extrapolation", r"^positions [\d,]+ to [\d,]+ .*YaRN, c = 0.1 3\.\d+"),
        ("multipliers", r"FLOPs .*LeRoPE 1\.\d{3} "),
    ],
)
def test_pointing_at_a_chart_reads_it(browser, file, section, wanted):
    browser.open(file.as_uri())
    assert tip(browser, section) == ""
    selector = f"#{section} .plot > svg"
    x, y = browser.middle(selector)
    browser.point(x, y)
    assert re.search(wanted, tip(browser, section)), tip(browser, section)
    inside = browser.run(
        f"(() => {{ const box = document.querySelector('#{section} .tip:not([hidden])').getBoundingClientRect();"
        " return box.left >= 0 && box.right <= innerWidth; })()"
    )
    assert inside
    browser.point(2, 2)
    assert tip(browser, section) == ""


@in_browser
def test_arrow_keys_read_charts(browser, file):
    browser.open(file.as_uri())
    browser.run("document.querySelector('#needles .plot').focus()")
    browser.press("ArrowRight")
    assert tip(browser, "needles").startswith("512 tokens, 1 distractor, depth 0 exact")
    browser.press("ArrowRight")
    browser.press("ArrowDown")
    assert tip(browser, "needles").startswith("512 tokens, 3 distractors, depth 0.1 exact")
    assert text(browser, "#spoken").startswith("512 tokens, 3 distractors, depth 0.1, exact match 75 %")
    browser.press("Escape")
    assert tip(browser, "needles") == ""
    browser.run("document.querySelector('#bands .plot').focus()")
    seen = set()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"):
        browser.press(key)
        seen.add(tip(browser, "bands"))
    assert len(seen) == 4


@in_browser
def test_tab_reaches_every_control_and_shows_where_it_is(browser, file):
    browser.open(file.as_uri() + "#runs=52M-lerope-42&runs=52M-rope-42")
    reached = set()
    for _ in range(140):
        browser.press("Tab")
        node = browser.run(
            "(() => { const node = document.activeElement, style = getComputedStyle(node);"
            "return [node.id || node.className || node.tagName, node.closest('section')?.id ?? '',"
            "node.matches(':focus-visible') && style.outlineStyle !== 'none']; })()"
        )
        assert node[2] or node[0] == "BODY", node
        reached.add((node[0], node[1]))
    assert ("theme", "") in reached
    assert ("slider", "frequencies") in reached
    assert ("play", "frequencies") in reached
    assert ("band", "phasors") in reached
    assert {section for name, section in reached if name == "plot"} == set(CHARTS)
    assert ("INPUT", "runs") in reached
