"""The page in a real browser, from disk and from `lerope watch`: by mouse, finger and keys, on paper, in the dark."""

import base64
import hashlib
import http.client
import json
import re
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from lerope.report.collect import collect
from lerope.report.page import render
from lerope.report.payload import payload
from lerope.report.watch import Source, open_server
from tests.report.browser import CHROMIUM, Browser
from tests.report.example import ODD_NAME, write_example
from tests.train.runs import edit

pytestmark = pytest.mark.slow

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

SCRIPT = "<script>alert(1)</script>"
# Sections that have a chart for the example's runs, and how to find a point of it.
CHARTS = ("verdict", "losses", "frequencies", "bands", "phasors", "ablation", "needles", "extrapolation", "multipliers")


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example")
    write_example(folder)
    return folder


@pytest.fixture(scope="module")
def file(example, tmp_path_factory):
    """The example's page on the disk."""
    path = tmp_path_factory.mktemp("report") / "index.html"
    path.write_text(render(payload(collect([example]))), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def one_browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(one_browser):
    """The browser with a plain desktop window; a test fails if the page complained."""
    one_browser.complaints.clear()
    one_browser.requests.clear()
    one_browser.screen(1280)
    one_browser.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    yield one_browser
    assert one_browser.complaints == []


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


@in_browser
def test_from_disk_everything_is_drawn_and_nothing_is_asked_for(browser, file):
    browser.open(file.as_uri())
    assert browser.requests == [file.as_uri()]
    for section in CHARTS:
        assert len(picture(browser, section)) > 500, section
    assert text(browser, "#verdict .sentence").startswith("LeRoPE is 0.0105 nats below RoPE (95 % interval")
    assert "band 11, of 1,057 tokens per turn, 2.06 train lengths, varies most" in text(browser, "#bands")
    data = json.loads(browser.run("document.querySelector('#data').textContent"))
    assert len(run_names(browser)) == len(data["runs"]) > 12
    assert browser.run("document.querySelectorAll('#provenance details').length") == len(data["runs"])
    assert browser.run("[...document.querySelectorAll('#notes li')].map((node) => node.innerText)") == data["notes"]
    assert browser.run("document.querySelector('#files').checkVisibility()") is False
    unnamed = (
        "[...document.querySelectorAll('svg[role=img]')].filter((node) => !node.getAttribute('aria-label')).length"
    )
    assert browser.run(unnamed) == 0


@in_browser
def test_there_is_one_loss_a_run_and_it_says_what_it_is_of(browser, file):
    browser.open(file.as_uri())
    heads = browser.run("[...document.querySelectorAll('#runs th')].map((cell) => cell.textContent)")
    assert heads == ["run", "encoding", "rung", "seed", "steps", "epochs", "loss", "perplexity", "bits/byte"]
    cells = {
        row[0]: row[1:]
        for row in browser.run(
            "[...document.querySelectorAll('#runs tbody tr')].map((row) => [...row.cells].map((c) => c.textContent))"
        )
    }
    assert cells["52M-lerope-42"] == ["LeRoPE", "52M", "42", "3,840", "5", "3.3995", "29.949", "1.1146"]
    assert cells["52M-lerope-42-length1024"][5] == "in training 3.3800"


@in_browser
def test_validation_in_training_says_what_it_reads(browser, file):
    browser.open(file.as_uri())
    data = json.loads(browser.run("document.querySelector('#data').textContent"))
    (tokens,) = {run["validationTokens"] for run in data["runs"]} - {None}
    assert f"Validation in training, the first {tokens / 1e6:.3g}M tokens" in picture(browser, "losses")
    assert "the first validation documents alone" in text(browser, "#losses .lead")


@in_browser
def test_still_bands_are_not_called_suppressed(browser, example, tmp_path):
    data = payload(collect([example / "52M-lerope-42", example / "52M-prope-p0.75-42"]))
    (still,) = [run for run in data["runs"] if run["method"] == "prope"]
    still["frequencies"]["suppressedFrom"] = 24  # as `lerope analyze` says of it
    file = tmp_path / "index.html"
    file.write_text(render(data), encoding="utf-8")
    browser.open(file.as_uri())
    said = text(browser, "#frequencies")
    assert "52M-lerope-42: bands from 12 on are suppressed" in said
    assert "52M-prope-p0.75-42: 8 bands do not turn" in said
    assert "52M-prope-p0.75-42: bands from" not in said


@in_browser
def test_the_gap_through_training_is_on_the_same_batches(browser, file):
    browser.open(file.as_uri() + "#runs=52M-lerope-42&runs=52M-rope-42&runs=52M-lerope-42-length1024")
    data = json.loads(browser.run("document.querySelector('#data').textContent"))
    gaps = {run["id"]: run["gap"] for run in data["runs"]}
    assert gaps["52M-rope-42"] is None
    assert gaps["52M-lerope-42-length1024"] is None  # no other run has rows of this length
    assert gaps["52M-lerope-42"]["baseline"] == "rope"
    assert gaps["52M-lerope-42"]["values"][-1] == pytest.approx(-0.0098, abs=0.004)
    assert "training loss less that of RoPE" in text(browser, "#losses")


@in_browser
def test_texts_from_outside_are_shown_as_what_they_are(browser, file):
    browser.open(file.as_uri() + "#runs=52M-lerope-42")
    assert "essay.txt, windows of 512 tokens" in text(browser, "#losses")
    cells = browser.run("[...document.querySelectorAll('#losses table')].at(-1).innerText.split(/[\\t\\n]+/)")
    assert cells[cells.index("52M-lerope-42") + 1 :][:2] == ["3.6995", "\u22120.0098"]  # the gap to 52M-rope-42 on them
    assert "less RoPE's" in cells
    browser.run("document.querySelectorAll('#provenance details').forEach((node) => { node.open = true; })")
    assert "loss on essay.txt, windows of 512 tokens" in text(browser, "#provenance")
    browser.open(file.as_uri() + "#runs=19M-lerope-42")
    assert "On other documents" not in text(browser, "#losses")


@in_browser
def test_needles_say_how_they_were_asked_for_and_where_the_filler_repeats(browser, example, tmp_path):
    run = shutil.copytree(example / "52M-lerope-42", tmp_path / "52M-lerope-42")
    for old, new, changes in (
        ("needle-long", "needle-long-samples-40-precision-bf16", {"num_filler_tokens": 3000, "precision": "bf16"}),
        ("needle", "needle-essays-12345678", {"filler": "essays"}),
    ):
        content = json.loads((run / "results" / f"{old}.json").read_text())
        content["settings"] |= changes
        (run / "results" / f"{new}.json").write_text(json.dumps({**content, "arrays_sha256": None}))
        (run / "results" / f"{old}.json").unlink()
    (tmp_path / "index.html").write_text(render(payload(collect([run]))), encoding="utf-8")
    browser.open((tmp_path / "index.html").as_uri())
    shown = text(browser, "#needles")
    assert "YaRN, 20 prompts per depth, bf16" in shown
    assert "20 prompts per depth, in essays" in shown
    assert "samples-40" not in shown
    assert shown.count("* The filler has 3,000 tokens: these prompts repeat sentences.") == 1
    marks = browser.run("[...document.querySelectorAll('#needles svg text')].map((node) => node.textContent)")
    assert [mark for mark in marks if mark.endswith("*")] == ["4k*", "8k*"]


@in_browser
def test_ways_of_stretching_have_colours_of_their_own(browser, file):
    browser.open(file.as_uri() + "#runs=52M-lerope-42")
    colors = browser.run(
        "[...document.querySelectorAll('#extrapolation .legend line')].map((node) => getComputedStyle(node).stroke)"
    )
    assert len(colors) == len(set(colors)) == 8


@in_browser
def test_what_is_missing_comes_with_its_command(browser, example, tmp_path):
    data = payload(collect([example / "52M-lerope-42", example / "19M-lerope-42"]))
    data["files"] = ["figures/training.svg"]
    data["missing"] = [{"name": "code", "text": "There is no run on code", "command": "lerope data prepare python:"}]
    (tmp_path / "index.html").write_text(render(data), encoding="utf-8")
    browser.open((tmp_path / "index.html").as_uri())
    assert "Not drawn, code: There is no run on code: lerope data prepare python:" in text(browser, "#files")
    assert f"Not measured: 19M-lerope-42. This does it: lerope needle {example}/19M-lerope-42" in text(
        browser, "#needles"
    )


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
def test_the_verdict_stands_on_every_rung_and_on_every_method_of_its_own(browser, file):
    browser.open(file.as_uri() + "#runs=")
    rows = browser.run("[...document.querySelectorAll('#verdict svg text.strong')].map((node) => node.textContent)")
    own = ["52M  RoPE, base 500,000", "52M  p-RoPE", "52M  LeRoPE", "52M  Frozen"]
    assert rows[1:] == ["19M  LeRoPE", *own, "217M  LeRoPE"]
    assert rows[0].startswith("nats per token against RoPE")
    browser.click("#verdict summary")
    assert browser.run("document.querySelectorAll('#verdict tbody tr').length") == 8  # p-RoPE at all rungs too


def visible(browser, selector):
    return browser.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].filter((node) => node.checkVisibility()).length"
    )


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
def test_the_slowest_bands_are_beside_the_single_ones(browser, file):
    browser.open(file.as_uri() + "#runs=52M-lerope-42&runs=52M-rope-42")
    browser.run("[...document.querySelectorAll('#ablation .plot')].at(-1).focus()")
    for _ in range(3):
        browser.press("ArrowRight")
    assert tip(browser, "ablation").startswith("without the 3 slowest bands 52M-")
    assert "20 suppressed" in picture(browser, "ablation")


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


@in_browser
def test_a_run_that_is_called_a_script_stays_text(browser, example, tmp_path):
    """A folder's name has no slash, but the name that tells two runs apart has."""
    folder, name = SCRIPT.split("/")
    shutil.copytree(example / "52M-lerope-42", tmp_path / folder / name)
    shutil.copytree(example / "52M-rope-42", tmp_path / "other" / name)
    edit(tmp_path / folder / name / "run.json", created=SCRIPT)
    data = payload(collect([tmp_path]))
    data["notes"].append(SCRIPT)
    data["files"].append(f"figures/{SCRIPT}.svg")
    file = tmp_path / "index.html"
    file.write_text(render(data), encoding="utf-8")
    browser.open(file.as_uri())
    assert SCRIPT in browser.run("document.title")
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert SCRIPT in run_names(browser)
    assert all(SCRIPT in text(browser, selector) for selector in ("#key", "#losses", "#bands", "#notes", "#files"))
    assert SCRIPT in browser.run("document.querySelector('#provenance').textContent")
    link = browser.run("document.querySelector('#files a').getAttribute('href')")
    assert link == "figures/%3Cscript%3Ealert(1)%3C/script%3E.svg"
    browser.click(box_of(browser, SCRIPT))
    browser.click(box_of(browser, SCRIPT))
    x, y = browser.middle("#losses .plot > svg")
    browser.point(x, y)
    assert SCRIPT in tip(browser, "losses")
    assert browser.requests == [file.as_uri()]


@in_browser
def test_a_run_with_nothing_yet_names_the_commands(browser, tmp_path, example):
    shutil.copytree(example / "52M-lerope-42", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "results")
    for name in ("metrics.jsonl", "frequencies.jsonl"):
        (tmp_path / "run" / name).unlink()
    file = tmp_path / "index.html"
    file.write_text(render(payload(collect([tmp_path]))), encoding="utf-8")
    browser.open(file.as_uri())
    assert "lerope train 52M --encoding rope --seed 42" in text(browser, "#verdict")
    commands = {
        "losses": "lerope train 52M",
        "bands": "lerope analyze",
        "phasors": "lerope analyze",
        "ablation": "--parts ablation",
        "needles": "lerope needle",
        "extrapolation": "--to 1024",
        "multipliers": "lerope eval",
    }
    for section, command in commands.items():
        assert command in text(browser, f"#{section}"), section
        assert picture(browser, section) == "", section


@contextmanager
def watching(folder):
    with open_server([folder], 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def training(example, tmp_path):
    """A run that is on its way, beside one that is finished; records by name."""
    for name in ("52M-rope-42", "52M-lerope-42"):
        shutil.copytree(example / name, tmp_path / "runs" / name)
    run = tmp_path / "runs" / "52M-lerope-42"
    edit(run / "run.json", finished=False)
    shutil.rmtree(run / "results")
    records = {}
    for name, count in (("metrics.jsonl", 60), ("frequencies.jsonl", 5)):
        records[name] = (run / name).read_text().splitlines(keepends=True)
        (run / name).write_text("".join(records[name][:count]))
    return run, records


@in_browser
def test_watch_follows_a_run_without_a_reload(browser, training):
    run, records = training
    with watching(run.parent) as server:
        browser.open(server.url)
        assert text(browser, "#state") == "live"
        now = text(browser, "#verdict .now")
        assert re.search(r"step \d+ of 3,840", now)
        assert "min" in now
        browser.click(box_of(browser, "52M-rope-42"))
        browser.run("document.querySelector('#slider').focus()")
        browser.press("Home")
        browser.run(
            "document.querySelector('#frequencies h2').scrollIntoView({ behavior: 'instant' }); window.kept = true"
        )
        place = "document.querySelector('#frequencies h2').getBoundingClientRect().top"
        before, top = picture(browser, "losses"), browser.run(place)
        (run / "metrics.jsonl").write_text("".join(records["metrics.jsonl"][:90]))
        (run / "frequencies.jsonl").write_text("".join(records["frequencies.jsonl"][:15]))
        browser.wait(f"document.querySelector('#verdict .now').innerText !== {json.dumps(now)}")
        assert picture(browser, "losses") != before
        assert browser.run("window.kept")
        assert ticked(browser) == ["52M-lerope-42"]
        assert browser.run("document.activeElement.id") == "slider"
        assert browser.run("Number(document.querySelector('#slider').value)") == 0
        assert browser.run(place) == pytest.approx(top, abs=1)
        edit(run / "run.json", finished=True)
        browser.wait("!document.querySelector('#verdict .now').checkVisibility()")
    assert set(browser.requests) == {server.url, f"{server.url}data.json"}
    browser.wait("document.querySelector('#state').innerText.includes('has ended')")
    refused = [complaint for complaint in browser.complaints if "ERR_CONNECTION_REFUSED" in complaint]
    assert browser.complaints == refused
    browser.complaints.clear()


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_watch_answers_this_machine_alone(training):
    run, _ = training
    with watching(run.parent) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert ask(server)[0] == 200
        for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
            assert ask(server, "/data.json", Host=host)[0] == 200, host
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "", "[::1", "a:b"):
            assert ask(server, "/data.json", Host=host)[0] == 403, host
        assert ask(server, "/run.json")[0] == 404
        assert ask(server, "/../run.json")[0] == 404
        assert ask(server, "/", "POST")[0] == 501


def test_watch_gives_the_same_data_as_the_report_and_new_runs(training, example):
    run, _ = training
    with watching(run.parent) as server:
        found = json.loads(ask(server, "/data.json")[1])
        wanted = json.loads(json.dumps(payload(collect([run.parent]))))
        assert {**found, "made": None, "live": None} == {**wanted, "made": None, "live": None}
        shutil.copytree(example / "52M-rope-43", run.parent / "52M-rope-43")
        found = json.loads(ask(server, "/data.json")[1])
        assert [each["id"] for each in found["runs"]] == ["52M-rope-42", "52M-rope-43", "52M-lerope-42"]
        shutil.rmtree(run.parent)
        status, content = ask(server, "/data.json")
        assert (status, b"holds no run" in content) == (503, True)


def test_watch_reads_only_what_has_changed(training, monkeypatch):
    run, records = training
    source = Source([run.parent])
    source.read()
    calls = []
    real = collect
    monkeypatch.setattr("lerope.report.watch.collect", lambda paths: calls.append(paths) or real(paths))
    (run / "metrics.jsonl").write_text("".join(records["metrics.jsonl"][:70]))
    step = json.loads(records["metrics.jsonl"][69])["step"]
    (found,) = [each for each in source.read()["runs"] if each["id"] == run.name]
    assert found["progress"]["step"] == step
    assert calls == []
    edit(run / "run.json", finished=True)
    source.read()
    assert len(calls) == 1


def test_a_port_that_is_taken_or_wrong_is_one_sentence(training):
    run, _ = training
    with watching(run.parent) as server, pytest.raises(ValueError, match="is in use by another program; name another"):
        open_server([run.parent], server.server_address[1])
    with pytest.raises(ValueError, match="port must be from 0 to 65535; got 70000"):
        open_server([run.parent], 70000)


def test_the_page_allows_its_own_script_alone(file):
    """Even text that became HTML by mistake could not run."""
    page = Path(file).read_text(encoding="utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http://" not in re.sub(r"http://www\.w3\.org/2000/svg", "", page)
    assert "https://" not in page
