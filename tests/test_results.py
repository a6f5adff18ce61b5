"""docs/results.md is what the archives in results/ say, and says the right thing about planted ones."""

import importlib
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import numpy as np
import pytest

from lerope.core.preset import preset_names, read_preset
from lerope.core.recipe import CHANGES
from lerope.core.run import read_run
from lerope.launch.study import PlannedRun, Study, grid
from lerope.results import Bands, Evaluation, Extrapolation, ExtrapolationRow
from lerope.results.token_losses import loss_arrays
from lerope.scaling.presets import make_preset
from tests.report.example import LENGTH, write_example
from tests.scaling.run_files import lengths, write_run

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "results"))
campaign, claims, page, reach = (importlib.import_module(name) for name in ("campaign", "claims", "page", "reach"))
STUDIES = ("effect", "window", "transfer", "size", "code", "preset", "horizon", "winner")


def test_the_page_and_the_readme_are_not_stale():
    done = subprocess.run(
        [sys.executable, ROOT / "results" / "page.py", "--check"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_one(name):
    study = getattr(campaign, name)()
    assert isinstance(study, Study)
    assert study.name == name


def test_studies_of_one_text_share_runs_of_one_recipe():
    """They go to one folder."""
    recipes = {}
    for name in STUDIES:
        for run in getattr(campaign, name)().runs if name != "code" else ():
            found = recipes.setdefault(run.name, run.recipe(Path()))
            assert found == run.recipe(Path()), run.name


def test_what_an_interval_says():
    assert claims.number_verdict(-0.01, -0.012, -0.008) == claims.AGREES
    assert claims.number_verdict(-0.02, -0.012, -0.008) == claims.SAME
    assert claims.number_verdict(0.01, -0.012, -0.008) == claims.DIFFERS
    assert claims.number_verdict(-0.02, -0.012, 0.001) == claims.NOISE
    assert claims.number_verdict(-0.01, -0.012, 0.001) == claims.NOISE


def write_study(folder: Path, study: Study, loss) -> None:
    """The study's runs as if they had been trained and evaluated."""
    for run in study.runs:
        recipe, changes = run.recipe(folder), {}
        for field in CHANGES:
            if hasattr(recipe, field):
                changes[field] = getattr(recipe, field)
        write_run(folder / run.name, run.encoding, run.seed, loss(run), rung=run.rung, recipe=changes)


def by_text(found):
    return {claim.paper.partition(":")[0]: claim for claim in found}


def test_planted_differences_are_found(tmp_path):
    gains = {"rope": 0.0, "lerope": claims.printed_difference("lerope"), "prope": 0.03}
    write_study(tmp_path / "english", campaign.effect(), lambda run: 3.0 + gains[run.encoding])
    found = by_text(claims.claims(claims.Archive(tmp_path / "english"), claims.Archive(tmp_path / "code")))
    lerope = found["LeRoPE against RoPE at 52M"]
    assert lerope.measured.startswith("-0.0099 nats")
    assert "3 seeds" in lerope.measured
    assert lerope.verdict == claims.AGREES
    assert found["p-RoPE against RoPE at 52M"].verdict == claims.SAME
    assert found["LeRoPE is ahead of RoPE with every seed"].measured == "3 of 3 seeds"
    assert found["LeRoPE is ahead of RoPE at every size"].verdict == claims.WAITING
    text = page.page(tmp_path)
    assert "2 of 3 claims that have been measured agree" in text
    assert "| 52M-lerope-43 | 4,000 | 2,048 | 2.9901 |" in text
    part = page.readme_part(tmp_path)
    assert "| **LeRoPE** | 2.9901 | -0.0099 |" in part
    readme = page.with_part(f"a\n{page.BEGIN}\nold\n{page.END}\nb", part)
    assert "old" not in readme
    assert part in readme


def test_one_seed_is_not_every_seed(tmp_path):
    """It would count one difference twice."""
    write_study(tmp_path / "english", campaign.effect(), lambda run: 3.0 - 0.0099 * (run.encoding == "lerope"))
    for path in (tmp_path / "english").glob("52M-*-4[34]"):
        shutil.rmtree(path)
    found = by_text(claims.claims(claims.Archive(tmp_path / "english"), claims.Archive(tmp_path / "code")))
    assert found["LeRoPE is ahead of RoPE with every seed"].verdict == claims.WAITING
    assert "documents alone, one seed" in found["LeRoPE against RoPE at 52M"].measured


def test_a_gain_at_some_sizes_only_is_not_agreement(tmp_path):
    gains = {("19M", "lerope"): -0.01, ("52M", "lerope"): -0.01, ("217M", "lerope"): 0.01}
    write_study(tmp_path / "english", campaign.size(), lambda run: 3.0 + gains.get((run.rung, run.encoding), 0.0))
    at_every_size = "LeRoPE is ahead of RoPE at every size"
    found = by_text(claims.claims(claims.Archive(tmp_path / "english"), claims.Archive(tmp_path / "code")))
    assert found[at_every_size].verdict == f"{claims.DIFFERS}, one seed"
    for path in (tmp_path / "english").glob("217M-*"):
        shutil.rmtree(path)
    found = by_text(claims.claims(claims.Archive(tmp_path / "english"), claims.Archive(tmp_path / "code")))
    assert found[at_every_size].verdict == f"{claims.AGREES}, 2 of 3 sizes, one seed"


def test_what_was_learned_and_how_far_it_reaches(tmp_path, monkeypatch):
    """A whole example study: a band at 2.1 windows, slow bands suppressed, LeRoPE ahead with YaRN."""
    write_example(tmp_path / "english")
    changes = {"row_length": LENGTH, "steps": 3840, "warmup_steps": 100}
    lengths = [
        PlannedRun(rung="52M", encoding="lerope", suffix=suffix, changes={**changes, "row_length": length})
        for suffix, length in (("", LENGTH), ("length1024", 1024), ("length2048", 2048))
    ]
    effect = grid(["52M"], ["rope", "lerope"], (42, 43, 44), **changes)
    for name in ("effect", "transfer", "size"):
        monkeypatch.setattr(campaign, name, lambda: Study(name="effect", sentence="?", runs=effect))
    monkeypatch.setattr(campaign, "window", lambda: Study(name="window", sentence="?", runs=lengths))
    found = claims.claims(claims.Archive(tmp_path / "english"), claims.Archive(tmp_path / "code"))
    of = {
        study: [claim for claim in found if claim.study == study] for study in ("profile", "window", "reach", "needle")
    }
    assert [claim.verdict for claim in of["profile"]] == [claims.AGREES] * 3
    assert "3 of 3 runs" in of["profile"][1].measured
    assert of["window"][0].verdict == f"{claims.AGREES}, one seed"
    assert "at 2,048" in of["window"][0].measured
    for claim in of["reach"] + of["needle"]:
        assert claim.verdict.removesuffix(", one seed") in (claims.AGREES, claims.DIFFERS)
        assert "RoPE " in claim.measured


def test_noise_is_not_agreement(tmp_path):
    """Means are as the paper says, and documents differ much more: that is no agreement, nor is it p-RoPE's."""
    gains = {"rope": 0.0, "lerope": claims.printed_difference("lerope"), "prope": claims.printed_difference("prope")}

    def loss(run: PlannedRun) -> np.ndarray:
        seed = 3 * run.seed + list(gains).index(run.encoding)
        noise = np.repeat(np.random.default_rng(seed).normal(0, 0.3, len(lengths())), lengths())
        return 3.0 + gains[run.encoding] + noise - noise.mean()

    write_study(tmp_path / "english", campaign.effect(), loss)
    found = claims.claims(claims.Archive(tmp_path / "english"), claims.Archive(tmp_path / "code"))
    numbers = [claim for claim in found if " against RoPE at 52M" in claim.paper]
    assert [claim.verdict for claim in numbers] == [claims.NOISE] * 2


def test_the_readme_s_table_has_one_set_of_seeds(tmp_path):
    """p-RoPE's first run has come when LeRoPE has three."""
    gains = {"rope": 0.0, "lerope": -0.01, "prope": 0.5}
    write_study(tmp_path / "english", campaign.effect(), lambda run: 3.0 + gains[run.encoding] + 0.1 * (run.seed - 42))
    for seed in (43, 44):
        shutil.rmtree(tmp_path / "english" / f"52M-prope-{seed}")
    part = page.readme_part(tmp_path)
    assert "| RoPE | 3.1000 | | |\n| **LeRoPE** | 3.0900 |" in part
    assert "p-RoPE" not in part
    assert re.search(r"Over 3 seeds and \d+ documents;", part)
    assert "tokens of English, read " in part


def test_needles_count_however_they_were_measured(tmp_path, monkeypatch):
    """The campaign's command writes another file than `lerope needle` without options."""
    write_example(tmp_path / "english")
    changes = {"row_length": LENGTH, "steps": 3840, "warmup_steps": 100}
    effect = Study(name="effect", sentence="?", runs=grid(["52M"], ["rope", "lerope"], (42, 43), **changes))
    monkeypatch.setattr(campaign, "effect", lambda: effect)
    for run in effect.runs:
        for file in (tmp_path / "english" / run.name / "results").glob("needle.*"):
            file.rename(file.with_stem("needle-precision-bf16"))
    (found,) = claims._needle(claims.Archive(tmp_path / "english"))
    assert found.verdict != claims.WAITING
    # With 1, 3, 7, 15 and 31 distractors, as often each.
    assert "picks one of a prompt's values finds 0.1938" in found.note


def test_lengths_without_a_band_that_stands_out_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "left_out_of_ratio", lambda bands: "none stands out")
    write_example(tmp_path / "english")
    changes = {"row_length": LENGTH, "steps": 3840, "warmup_steps": 100}
    runs = [
        PlannedRun(rung="52M", encoding="lerope", suffix=suffix, changes={**changes, "row_length": length})
        for suffix, length in (("", LENGTH), ("length1024", 1024), ("length2048", 2048))
    ]
    monkeypatch.setattr(campaign, "window", lambda: Study(name="window", sentence="?", runs=runs))
    (found,) = claims._window(claims.Archive(tmp_path / "english"))
    assert found.measured == "0 of 3 runs have a band that stands out"
    assert found.verdict == f"{claims.DIFFERS}, one seed"


def test_half_a_study_is_compared_as_far_as_it_goes(tmp_path):
    """Runs come one by one: a LeRoPE run that waits for its RoPE run is no error, and damage is one."""
    folder = tmp_path / "english"
    write_study(folder, campaign.size(), lambda run: 3.0 - 0.01 * (run.encoding == "lerope"))
    for path in folder.glob("217M-rope-*"):
        shutil.rmtree(path)
    for path in folder.glob("19M-lerope-*"):
        shutil.rmtree(path)
    found = claims.Archive(folder).compared(campaign.size())
    assert [effect["rung"].partition(",")[0] for effect in found.effects] == ["52M"]
    for path in folder.glob("52M-lerope-*"):
        (path / "results" / "eval.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="changed or damaged"):
        claims.Archive(folder)


def test_a_run_of_another_recipe_does_not_count(tmp_path):
    write_run(tmp_path / "english" / "52M-rope-42", "rope")
    with pytest.raises(ValueError, match="has a different run: its"):
        claims.claims(claims.Archive(tmp_path / "english"), claims.Archive(tmp_path / "code"))


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_of_the_package_is_what_its_archived_runs_learned(name):
    preset = read_preset(name)
    runs = [ROOT / "results" / name / run for profile in preset.profiles for run in profile.runs]
    assert make_preset(runs, name).preset.profiles == preset.profiles


def test_other_archives_make_the_page_stale(tmp_path):
    before = page.page(tmp_path)
    write_run(tmp_path / "english" / "another", "rope")
    assert page.digest(tmp_path) not in before
    assert page.page(tmp_path) != before


def test_a_wavelength_of_a_band_that_does_not_stand_out_is_in_parentheses():
    """It is that of a band among equals."""
    assert reach._wavelength(bands_of(dominance=2.5)) == "2.0"
    assert reach._wavelength(bands_of(dominance=1.02)) == "(2.0)"


def bands_of(dominance: float) -> Any:
    """A run of which only its bands are asked."""
    found = Bands(run={}, settings={}, provenance={}, train_length=256, dominant_band=14, dominant_wavelength=512.0,
                  dominance=dominance, bands=[], layers=[])  # fmt: skip
    return SimpleNamespace(result=lambda kind: found)


WINDOW = 1000
"""Of `write_run`."""


def write_reach(path: Path, naive: float, extended: float, logits: float | None = None) -> None:
    """Losses from one window to four: as the model is, with YaRN, and with logits by position."""
    ways = [("none", 0.0, naive), ("yarn", 0.1, extended)]
    ways += [] if logits is None else [("logits", 0.2, logits)]
    bins = [
        {"selection": "long", "method": method, "temperature": c, "label": method, "num_tokens": 10 * (stop - start),
         "start": start, "stop": stop, "loss": 3.0 if start < WINDOW else loss}
        for method, c, loss in ways
        for start, stop in ((0, WINDOW), (WINDOW, 2 * WINDOW), (2 * WINDOW, 4 * WINDOW))
    ]  # fmt: skip
    zeros = dict.fromkeys(get_type_hints(ExtrapolationRow), 0.0)
    rows = [{**zeros, "selection": "long", "method": m, "temperature": c, "label": m, "num_documents": 1,
             "num_tokens": 1, "num_extrapolated": 1} for m, c, _ in ways]  # fmt: skip
    settings = {"documents": "validation", "fingerprint": "d", "train_length": WINDOW, "to": 4 * WINDOW}
    Extrapolation(
        run=read_run(path).label,
        settings={**settings, "precision": "bf16"},
        provenance={},
        ways=rows,
        by_position=bins,
    ).save(path / "results" / "extrapolation.json")


def write_learned_on(path: Path, source: str, near: float, far: list[float]) -> None:
    """A run that learned on: the loss in texts of one window, and that of each of four windows in longer texts."""
    write_run(path, "lerope", recipe={"row_length": 4 * WINDOW, "batch_tokens": 8 * WINDOW, "start_from": source,
                                      "learn": "rotation"})  # fmt: skip
    file = path / "results" / "eval.json"
    evaluation = Evaluation.load(file)
    short = loss_arrays(np.full(WINDOW, near, np.float32), np.array([WINDOW]), WINDOW)
    replace(evaluation, loss=near).save_with(path / "results" / f"eval-{WINDOW}.json", short)
    # Two documents that reach the end, and one that does not and must not count.
    losses = np.concatenate([np.repeat(far, WINDOW), np.repeat(far, WINDOW), np.full(2 * WINDOW, 99.0)])
    arrays = loss_arrays(losses.astype(np.float32), np.array([4, 8, 10]) * WINDOW, 4 * WINDOW)
    settings = {**evaluation.settings, "length": 4 * WINDOW, "truncate": True}
    replace(evaluation, settings=settings).save_with(path / "results" / "eval-truncated.json", arrays)
    file.unlink()
    file.with_suffix(".safetensors").unlink()


def test_how_far_candidates_reach(tmp_path, monkeypatch):
    """Means over seeds, the goal by RoPE's best extension, and an extension that was learned."""
    runs = [
        PlannedRun(rung="52M", encoding=encoding, seed=seed) for seed in (42, 43) for encoding in ("rope", "lerope")
    ]
    learned = PlannedRun(rung="52M", encoding="lerope", after="52M-rope-42", called="learned")
    study = Study(name="horizon", sentence="?", runs=[*runs, learned])
    monkeypatch.setattr(claims, "difference", lambda *_: None)  # these runs are smaller than the study's
    losses = {"rope": (3.0, 3.5, 3.2), "lerope": (2.99, 3.21, 3.1)}
    for run in runs:
        inside, naive, extended = losses[run.encoding]
        write_run(tmp_path / run.name, run.encoding, run.seed, inside)
        write_reach(tmp_path / run.name, naive + 0.01 * (run.seed - 42), extended)
    write_learned_on(tmp_path / "learned", "52M-rope-42", 3.02, [3.3, 3.25, 3.15, 3.05])
    made = reach.rows(claims.Archive(tmp_path), study)
    rope, lerope, on = made
    assert [(row.label, row.num_seeds) for row in made] == [("rope", 2), ("lerope", 2), ("rope, extension learned", 1)]
    assert rope.beyond[1, 4] == pytest.approx(math.exp(3.505))
    assert rope.extended == {("none", 0.0): pytest.approx(math.exp(3.505)), ("yarn", 0.1): pytest.approx(math.exp(3.2))}
    assert lerope.kept == 1
    assert lerope.inside.startswith("-0.0100 (")
    assert [reach.met(row, made) for row in made] == [[], ["inside", "outside"], ["outside"]]
    assert reach.verdict(made[:2]) == ""
    assert reach.verdict(made).endswith(": both: none; outside: `rope, extension learned`.")
    both = replace(on, label="new", kept=0.8)
    assert reach.verdict([*made, both]).endswith(": inside and outside: `new`; outside: `rope, extension learned`.")
    unclear = [replace(row, kept=None) for row in made]
    assert "not told from noise here" in reach.verdict(unclear)
    assert on.beyond == {(1, 2): pytest.approx(math.exp(3.25)), (2, 4): pytest.approx(math.exp(3.1)),
                         (1, 4): pytest.approx(math.exp(3.15))}  # fmt: skip
    assert on.inside == "+0.0200"
    assert on.kept == pytest.approx(-2, rel=1e-3)
    table = reach.table(made).splitlines()
    assert len(table) == 2 + 3
    assert f"| {math.exp(3.2):.2f}: YaRN, c = 0.1 |" in table[2]
    assert table[3].endswith("| **inside; outside** |")
    assert f"the goal is {1.02 * math.exp(3.2):.2f}." in reach.aims(made)


def test_logits_by_position_are_a_candidate_that_is_the_same_inside(tmp_path, monkeypatch):
    """And an extension that only some were scored with is nobody's best."""
    monkeypatch.setattr(claims, "difference", lambda *_: None)
    runs = [PlannedRun(rung="52M", encoding=encoding) for encoding in ("rope", "lerope", "prope")]
    for run, loss, logits in zip(runs, (3.0, 2.99, 3.0), (3.19, 3.18, None), strict=True):
        write_run(tmp_path / run.name, run.encoding, run.seed, loss)
        write_reach(tmp_path / run.name, 3.5, 3.25, logits)

    def rows(some: list[PlannedRun]) -> dict[str, Any]:
        study = Study(name="horizon", sentence="?", runs=some)
        return {row.label: row for row in reach.rows(claims.Archive(tmp_path), study)}

    made = rows(runs[:2])
    assert list(made) == ["rope", "rope, logits by position", "lerope", "lerope, logits by position"]
    by_position = made["lerope, logits by position"]
    assert by_position.beyond[1, 4] == pytest.approx(math.exp(3.18))
    assert (by_position.inside, by_position.kept) == (made["lerope"].inside, 1)
    assert reach.best(made["rope"]) == (reach.BY_POSITION, pytest.approx(math.exp(3.19)))
    assert reach.met(by_position, [*made.values()]) == ["inside", "outside"]
    assert reach.best(rows(runs)["rope"]) == (("yarn", 0.1), pytest.approx(math.exp(3.25)))
