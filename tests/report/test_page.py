"""What the report page says, in a real browser: losses, verdicts, tables, what is missing."""

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from lerope.report.collect import collect
from lerope.report.page import render
from lerope.report.payload import payload
from tests.report.pages import CHARTS, SCRIPT, box_of, in_browser, picture, run_names, text, tip
from tests.train.runs import edit

pytestmark = pytest.mark.slow


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
def test_a_way_far_above_all_others_does_not_press_them_together(browser, example, tmp_path):
    data = payload(collect([example / "52M-lerope-42"]))
    ways = data["runs"][0]["extrapolation"]["ways"]
    highest = max(loss for way in ways for loss in way["loss"])
    for way in ways:
        if way["way"] == "pi":
            way["loss"] = [20 * highest for _ in way["loss"]]
    (tmp_path / "index.html").write_text(render(data), encoding="utf-8")
    browser.open((tmp_path / "index.html").as_uri())
    assert "Above the charts: PI. " in text(browser, "#extrapolation")
    tall = "Math.max(...[...document.querySelectorAll('#extrapolation .curve')].map((node) => node.getBBox().height))"
    assert browser.run(tall) > 100


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
def test_the_verdict_stands_on_every_rung_and_on_every_method_of_its_own(browser, file):
    browser.open(file.as_uri() + "#runs=")
    rows = browser.run("[...document.querySelectorAll('#verdict svg text.strong')].map((node) => node.textContent)")
    own = ["52M  RoPE, base 500,000", "52M  p-RoPE", "52M  LeRoPE", "52M  Frozen"]
    assert rows[1:] == ["19M  LeRoPE", *own, "217M  LeRoPE"]
    assert rows[0].startswith("nats per token against RoPE")
    browser.click("#verdict summary")
    assert browser.run("document.querySelectorAll('#verdict tbody tr').length") == 8  # p-RoPE at all rungs too


@in_browser
def test_the_slowest_bands_are_beside_the_single_ones(browser, file):
    browser.open(file.as_uri() + "#runs=52M-lerope-42&runs=52M-rope-42")
    browser.run("[...document.querySelectorAll('#ablation .plot')].at(-1).focus()")
    for _ in range(3):
        browser.press("ArrowRight")
    assert tip(browser, "ablation").startswith("without the 3 slowest bands 52M-")
    assert "20 suppressed" in picture(browser, "ablation")


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
    assert "lerope train 52M --encoding rope" in text(browser, "#verdict")
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
