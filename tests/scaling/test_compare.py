"""Comparisons of runs that are written as files, against numbers worked out from those files in other ways."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from safetensors.numpy import load_file

from lerope.results import Comparison, Evaluation
from lerope.results.token_losses import position_edges
from lerope.scaling import compute_multipliers
from lerope.scaling.compare import compare
from lerope.scaling.evaluated import read_study
from lerope.scaling.rung import verdict
from lerope.scaling.seeds import Effect, Interval
from lerope.scaling.study import read_runs, study
from tests.scaling.run_files import LENGTH, lengths, token_losses, write_run, write_study

FEW = {"num_resamples": 200}
PAIRS = {
    ("52M", "rope", 42): 3.010,
    ("52M", "rope", 43): 3.015,
    ("52M", "rope", 44): 3.012,
    ("52M", "lerope", 42): 3.003,
    ("52M", "lerope", 43): 3.009,
    ("52M", "lerope", 44): 3.006,
}


def test_effects_are_means_of_pairs(tmp_path):
    found = compare(write_study(tmp_path, PAIRS), **FEW)
    (effect,) = found.effects
    assert (found.baseline, found.reference, effect["method"]) == ("rope", None, "lerope")
    assert effect["difference"] == pytest.approx(np.mean([-0.007, -0.006, -0.006]), abs=1e-6)
    assert effect["loss"] == pytest.approx(3.006, abs=1e-6)
    assert effect["baseline_loss"] == pytest.approx((3.010 + 3.015 + 3.012) / 3, abs=1e-6)
    half = 4.30265 * np.std([7, 6, 6], ddof=1) * 1e-3 / np.sqrt(3)
    assert effect["seeds_high"] == pytest.approx(effect["difference"] + half, abs=1e-6)
    assert effect["num_documents"] == 59
    assert effect["num_tokens"] == lengths().sum()
    assert effect["beyond_noise"] is True
    assert {(loss["method"], loss["seed"]): round(loss["loss"], 5) for loss in found.losses} == {
        key[1:]: value for key, value in PAIRS.items()
    }
    assert found.gains == []
    assert found.multipliers == []
    assert found.notes == []


def test_the_result_is_a_file_that_reads_back(tmp_path):
    found = compare(write_study(tmp_path, PAIRS), **FEW)
    found.save(tmp_path / "comparison.json")
    assert Comparison.load(tmp_path / "comparison.json") == found
    assert found.settings["length"] == LENGTH


def test_gaps_by_position_are_those_of_the_tokens(tmp_path, monkeypatch):
    """Also when documents come in several chunks; the gain is planted in the second half of each window."""
    documents = lengths()
    positions = np.concatenate([np.arange(n) % LENGTH for n in documents])
    base = token_losses(1, 3.0, len(positions))
    variant = base + np.where(positions >= LENGTH // 2, -0.01, 0.002)
    runs = [write_run(tmp_path / "a", "rope", 1, base), write_run(tmp_path / "b", "lerope", 1, variant)]
    whole = compare(runs, **FEW)
    edges = [0, 1, 2, 4, 8, 16, 32, 64]
    assert position_edges(LENGTH).tolist() == edges
    gaps = whole.by_position
    assert [(gap["start"], gap["stop"]) for gap in gaps] == list(pairwise(edges))
    for gap in gaps:
        inside = (positions >= gap["start"]) & (positions < gap["stop"])
        assert gap["num_tokens"] == inside.sum()
        assert gap["difference"] == pytest.approx(-0.01 if gap["start"] >= 32 else 0.002, abs=1e-6)
        assert gap["standard_error"] == pytest.approx(0, abs=1e-6)
    monkeypatch.setattr("lerope.results.token_losses._TOKENS_AT_ONCE", 150)
    runs = [write_run(tmp_path / "a", "rope", 1, base), write_run(tmp_path / "b", "lerope", 1, variant)]
    chunked = compare(runs, **FEW)
    assert [gap["num_tokens"] for gap in chunked.by_position] == [gap["num_tokens"] for gap in gaps]
    differences = [gap["difference"] for gap in chunked.by_position]
    assert differences == pytest.approx([gap["difference"] for gap in gaps], abs=1e-12)
    assert chunked.effects[0]["difference"] == pytest.approx(whole.effects[0]["difference"], abs=1e-12)


def test_bins_of_the_paper_s_length():
    assert position_edges(2048).tolist() == [0, 16, 32, 64, 128, 256, 512, 1024, 2048]
    assert position_edges(3).tolist() == [0, 1, 3]


def test_the_gain_captured(tmp_path):
    losses = {("52M", m, s): 3.0 - g for s in (1, 2) for m, g in (("rope", 0), ("prope", 0.002), ("lerope", 0.01))}
    losses |= {("52M", "models/lerope-9/model/frequencies.json", s): 3.0 - 0.006 for s in (1, 2)}
    found = compare(write_study(tmp_path, losses), **FEW)
    assert found.reference == "lerope"
    assert {gain["method"]: round(gain["loss"], 3) for gain in found.gains} == {"prope": 0.2, "frozen": 0.6}
    shares = {gain["method"]: gain["perplexity"] for gain in found.gains}
    assert shares["frozen"] == pytest.approx((1 - np.exp(-0.006)) / (1 - np.exp(-0.01)), abs=1e-4)
    other = compare(sorted(tmp_path.iterdir()), reference="frozen", **FEW)
    assert {gain["method"]: round(gain["loss"], 2) for gain in other.gains} == {"prope": 0.33, "lerope": 1.67}


def test_no_method_stands_for_lerope_unless_it_is_named(tmp_path):
    """In the study of p, p = 0.25 is no more the whole gain than p = 0.5 is."""
    losses = {"rope": 3.0, "prope,p=0.25": 2.9, "prope,p=0.5": 2.95}
    paths = [write_run(tmp_path / method, method, losses=loss) for method, loss in losses.items()]
    found = compare(paths, **FEW)
    assert (found.reference, found.gains) == (None, [])
    assert any("--reference" in note for note in found.notes)
    named = compare(paths, reference="prope,p=0.5", **FEW)
    assert [(gain["method"], round(gain["loss"], 3)) for gain in named.gains] == [("prope,p=0.25", 2.0)]


def test_a_gain_that_is_noise_or_nothing_has_a_word(tmp_path):
    losses = {("52M", "rope", 1): 3.0, ("52M", "prope", 1): 2.9, ("52M", "lerope", 1): 3.0}
    found = compare(write_study(tmp_path / "a", losses), **FEW)
    assert found.gains == []
    assert found.notes == ["52M: lerope has rope's loss, so there is no gain to share."]
    losses = {("52M", m, s): 3.0 + g for m in ("rope", "prope", "lerope") for s, g in ((1, 0.0), (2, 0.0))}
    losses |= {("52M", "lerope", 1): 2.9, ("52M", "lerope", 2): 3.09}
    found = compare(write_study(tmp_path / "b", losses), **FEW)
    assert found.notes == ["52M: the gain of lerope cannot be told from noise, so shares of it mean little."]
    assert [effect["beyond_noise"] for effect in found.effects] == [False, False]


def test_seeds_without_a_pair_are_left_out_with_a_word(tmp_path):
    paths = write_study(tmp_path, {**PAIRS, ("52M", "prope", 42): 3.0, ("52M", "prope", 45): 1.0})
    found = compare(paths, **FEW)
    effect = next(effect for effect in found.effects if effect["method"] == "prope")
    assert effect["difference"] == pytest.approx(-0.010, abs=1e-6)
    assert effect["num_seeds"] == 1
    assert effect["both_low"] is None
    assert found.notes == [
        "52M: seed 45 of prope left out, because rope has no such run.",
        "52M: seeds 43, 44 of rope left out, because prope has no such run.",
    ]


def test_several_rungs_have_multipliers(tmp_path):
    losses = {("19M", "rope"): 4.0, ("19M", "lerope"): 3.99, ("52M", "rope"): 3.5, ("52M", "lerope"): 3.492}
    losses |= {("217M", "rope"): 3.1, ("217M", "lerope"): 3.095, ("217M", "prope"): 3.098}
    paths = write_study(tmp_path, {(rung, method, 1): loss for (rung, method), loss in losses.items()})
    found = compare(paths, **FEW)
    assert [effect["rung"] for effect in found.effects] == ["19M", "52M", "217M", "217M"]
    # 6 N D with N = 12 width^2 layers: 3, 6, 12 layers of widths 256, 512, 1024; 400, 800, 1,600 steps of 1,000 tokens.
    compute = [72 * 256**2 * 3 * 4e5, 72 * 512**2 * 6 * 8e5, 72 * 1024**2 * 12 * 1.6e6]
    want = compute_multipliers(compute, [4.0, 3.5, 3.1], [3.99, 3.492, 3.095])
    assert [point["compute"] for point in found.multipliers] == compute
    assert [point["multiplier"] for point in found.multipliers] == pytest.approx(want, abs=1e-5)
    assert found.notes == ["prope has no multipliers, because it has no run at 19M, 52M."]


def test_losses_that_do_not_fall_leave_the_comparison_alone(tmp_path):
    losses = {("19M", "rope", 1): 3.0, ("19M", "lerope", 1): 2.9, ("52M", "rope", 1): 3.5, ("52M", "lerope", 1): 3.4}
    found = compare(write_study(tmp_path, losses), **FEW)
    assert len(found.effects) == 2
    assert found.multipliers == []
    assert "baseline_loss must fall with compute" in found.notes[0]


def test_studies_of_runs(tmp_path):
    losses = {(rung, method, seed): loss + 0.01 * seed - (0.01 if method == "lerope" else 0)
              for rung, loss in (("19M", 4.0), ("52M", 3.5), ("217M", 3.1)) for method in ("rope", "lerope")
              for seed in (1, 2)}  # fmt: skip
    paths = write_study(tmp_path, losses)
    (extra,) = write_study(tmp_path, {("52M", "rope", 3): 9.0})
    found = study(read_runs([*paths, extra]))
    assert [point["loss"] for point in found.losses if point["method"] == "rope"] == pytest.approx(
        [4.015, 3.515, 3.115]
    )
    compute = [point["compute"] for point in found.losses if point["method"] == "rope"]
    want = compute_multipliers(compute, [4.015, 3.515, 3.115], [4.005, 3.505, 3.105])
    got = [point["multiplier"] for point in found.multipliers if point["estimator"] == "piecewise in ln C"]
    assert got == pytest.approx(want)
    assert found.notes == ["52M: left out seeds that some methods lack: 3."]
    assert {fit["estimator"] for fit in found.fits} >= {"fitted", "shared E"}


def interval_effect(difference, low, high, seeds=True):
    interval = Interval(low, high)
    both = interval if seeds else None
    return Effect(difference=difference, by_seed=[], documents=interval, seeds=both, both=both)


@pytest.mark.parametrize(
    ("measured", "num_seeds", "sentence"),
    [
        (
            interval_effect(-0.0066, -0.0113, -0.0019),
            3,
            "lerope is 0.0066 nats below rope (95 % interval 0.0019 to 0.0113 over 3 seeds and 5,210 documents): more "
            "than noise explains.",
        ),
        (
            interval_effect(0.0066, 0.0019, 0.0113),
            3,
            "lerope is 0.0066 nats above rope (95 % interval 0.0019 to 0.0113 over 3 seeds and 5,210 documents): more "
            "than noise explains.",
        ),
        (
            interval_effect(-0.0012, -0.0031, 0.0007),
            3,
            "lerope is 0.0012 nats below rope, which cannot be told from noise: the 95 % interval over 3 seeds and "
            "5,210 documents goes from 0.0007 above to 0.0031 below.",
        ),
        (
            interval_effect(-0.0066, -0.0072, -0.006, seeds=False),
            1,
            "lerope is 0.0066 nats below rope (95 % interval 0.0060 to 0.0072 over 5,210 documents alone): more than "
            "these documents explain, but one seed says nothing about others.",
        ),
        (
            interval_effect(0.0001, -0.0004, 0.0006, seeds=False),
            1,
            "lerope is 0.0001 nats above rope, which cannot be told from noise: the 95 % interval over 5,210 documents "
            "goes from 0.0004 below to 0.0006 above, and one seed says nothing about others.",
        ),
    ],
)  # fmt: skip
def test_verdicts(measured, num_seeds, sentence):
    assert verdict("lerope", "rope", measured, num_seeds, 5210) == sentence


def replace_result(path, **changes):
    file = path / "results" / "eval.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def replace_arrays(path, **changes):
    """Other arrays that the result was saved with, as a command with a mistake would."""
    file = path / "results" / "eval.json"
    arrays = {**load_file(file.with_suffix(".safetensors")), **changes}
    Evaluation.load(file).save_with(file, {name: array for name, array in arrays.items() if array is not None})


def one_token_elsewhere(path):
    counts = load_file(path / "results" / "eval.safetensors")["document_counts"].copy()
    counts[0, 0] += 1
    counts[1, 0] -= 1
    replace_arrays(path, document_counts=counts)


def not_finite(path):
    sums = load_file(path / "results" / "eval.safetensors")["document_sums"].copy()
    sums[5, 0] = np.nan
    replace_arrays(path, document_sums=sums)


DAMAGE = [
    (lambda p: (p / "results" / "eval.json").unlink(), "eval.json does not exist; run `lerope eval "),
    (lambda p: (p / "results" / "eval.safetensors").unlink(), "eval.safetensors does not exist; make it again"),
    (lambda p: (p / "results" / "eval.safetensors").write_bytes(b"nothing"), "was changed or damaged; make it again"),
    (lambda p: replace_arrays(p, document_sums=None), "eval.safetensors has no document_sums; make it again"),
    (lambda p: replace_arrays(p, document_counts=np.zeros(7, np.int64)), "does not hold the 2,"),
    (lambda p: replace_arrays(p, document_counts=np.zeros((2, 2), np.int64)), "does not hold the 2,"),
    (lambda p: replace_arrays(p, document_sums=np.zeros((2, 2))), "has a mean loss of 0.0000"),
    (lambda p: replace_result(p, num_documents=58), "tokens of 58 documents that its evaluation counts"),
    (lambda p: replace_result(p, loss=3.1), "its evaluation says 3.1000"),
    (one_token_elsewhere, "different documents; run `lerope eval` on both again"),
    (not_finite, "holds losses that are not finite"),
    (lambda p: replace_result(p, run={"created": "before"}), "run.name"),
    (lambda p: replace_result(p, run={"name": "b", "created": "before"}), "was made from an earlier training"),
    (lambda p: replace_result(p, kind="needle"), "kind and version must be evaluation, 2, got needle, 2"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE)
def test_damaged_evaluations_are_one_sentence(tmp_path, damage, sentence):
    paths = [write_run(tmp_path / "a", "rope"), write_run(tmp_path / "b", "lerope", losses=3.0)]
    assert compare(paths, **FEW).effects
    damage(paths[1])
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        compare(paths, **FEW)
    assert "\n" not in str(error.value)


MIXTURES = [
    ({"data": "e" * 64}, "trained on different data or tokenizers (fingerprints dddddddddddd and eeeeeeeeeeee)"),
    ({"recipe": {"learning_rate": 0.5}}, "learning_rate is 0.00125 in the first and 0.5 in the second"),
    ({"recipe": {"model": {"num_layers": 6, "num_heads": 8, "head_dim": 32}}}, "model.head_dim is 64 in the first"),
    ({"settings": {"length": 32}}, "were evaluated differently: length is 64 in the first and 32 in the second"),
    ({"settings": {"precision": "bf16"}}, "precision is None in the first and 'bf16' in the second"),
    ({"finished": False}, "is not finished"),
    ({"encoding": "rope"}, "are both of rung 52M, method rope and seed 42; name one of them"),
    ({"seed": 1}, "lerope and rope have no seed in common at 52M"),
    ({"rung": "19M"}, "baseline must have a run at every rung; 19M has lerope"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), MIXTURES)
def test_mixtures_are_refused_in_one_sentence(tmp_path, changes, sentence):
    paths = [write_run(tmp_path / "a", "rope"), write_run(tmp_path / "b", **{"encoding": "lerope", **changes})]
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        compare(paths, **FEW)
    assert "\n" not in str(error.value)


def test_requests_that_fit_no_run(tmp_path):
    paths = write_study(tmp_path, PAIRS)
    for call, sentence in (
        (lambda: compare([]), "name two run directories or more"),
        (lambda: compare(paths[:3]), "name runs of two methods or more at every rung; 52M has"),
        (lambda: compare(paths, baseline="nope"), "52M has rope, lerope"),
        (
            lambda: compare(paths, reference="nope"),
            "reference must be one of lerope; got 'nope', with rope as baseline",
        ),
        (lambda: compare(paths, evaluation="eval-1024"), "eval-1024.json does not exist"),
        (lambda: compare([tmp_path]), "run.json does not exist; name a folder that `lerope train` wrote"),
        (lambda: read_runs(paths), "name runs of two rungs or more, or losses have no slope; got 52M"),
    ):
        with pytest.raises(ValueError, match=r"\.$") as error:
            call()
        assert sentence in str(error.value)


def test_a_method_that_is_not_at_every_rung(tmp_path):
    losses = {("19M", "rope", 1): 4.0, ("19M", "lerope", 1): 3.9, ("52M", "rope", 1): 3.5, ("52M", "lerope", 1): 3.4}
    paths = write_study(tmp_path, {**losses, ("52M", "prope", 1): 3.45})
    with pytest.raises(ValueError, match="prope has no run at 19M; train and evaluate one, or leave prope out"):
        read_runs(paths)
    more = write_study(tmp_path, {("19M", "prope", 2): 3.95})
    with pytest.raises(ValueError, match="methods at 19M have no seed in common"):
        read_runs([*paths, *more])


def test_the_study_is_ordered_by_compute(tmp_path):
    paths = write_study(tmp_path, {("52M", "rope", 1): 3.0, ("19M", "rope,base=500000", 1): 4.0})
    assert list(read_study(paths)) == ["19M", "52M"]
    assert list(read_study(paths)["19M"]) == ["rope,base=500000"]


def test_initial_frequencies_may_differ(tmp_path):
    """`write_run` gives each encoding its own, as training does."""
    paths = write_study(tmp_path, PAIRS)
    evaluations = [Evaluation.load(path / "results" / "eval.json").run["initial_frequencies"] for path in paths]
    assert len(set(evaluations)) == 2
    assert compare(paths, **FEW).effects


def test_a_rung_trained_for_several_numbers_of_steps_counts_as_several(tmp_path):
    cells = {("rope", 100): 3.2, ("lerope", 100): 3.1, ("rope", 400): 2.9, ("lerope", 400): 2.85}
    paths = [
        write_run(tmp_path / f"{method}-{steps}", method, losses=loss, recipe={"steps": steps})
        for (method, steps), loss in cells.items()
    ]
    found = compare(paths)
    assert [effect["rung"] for effect in found.effects] == ["52M, 100 steps", "52M, 400 steps"]
    assert [effect["difference"] for effect in found.effects] == pytest.approx([-0.1, -0.05], abs=1e-6)
    assert [each["rung"] for each in found.multipliers] == ["52M, 100 steps", "52M, 400 steps"]
    with pytest.raises(ValueError, match="steps is 100 in the first and 400 in the second"):
        compare([paths[0], paths[3]])


def test_rungs_by_steps_may_differ_in_methods_but_for_the_baseline(tmp_path):
    """As in the study of seeds made small: four methods at one size, two of them at the other."""
    cells = {("rope", 100): 3.2, ("rope,base=500000", 100): 3.15, ("lerope", 100): 3.1}
    cells |= {("rope", 400): 2.9, ("lerope", 400): 2.85}
    paths = [
        write_run(tmp_path / f"{method}-{steps}", method, losses=loss, recipe={"steps": steps})
        for (method, steps), loss in cells.items()
    ]
    found = compare(paths)
    assert [(effect["rung"], effect["method"]) for effect in found.effects] == [
        ("52M, 100 steps", "rope,base=500000"),
        ("52M, 100 steps", "lerope"),
        ("52M, 400 steps", "lerope"),
    ]
    assert {each["method"] for each in found.multipliers} == {"lerope"}
    # Without a baseline for all there is nothing to hold them against.
    with pytest.raises(ValueError, match="steps is 100 in the first and 400 in the second"):
        compare([paths[1], paths[2], write_run(tmp_path / "nope", "nope", recipe={"steps": 400}), paths[3]])


def test_what_changes_no_weight_may_differ(tmp_path):
    rope = write_run(tmp_path / "a", "rope", recipe={"validation_tokens": 1, "frequency_learning_rate": 1.0})
    lerope = write_run(tmp_path / "b", "lerope", recipe={"validation_tokens": 2, "frequency_learning_rate": 2.0})
    assert len(compare([rope, lerope]).effects) == 1
    other = write_run(tmp_path / "c", "lerope,sharing=layer", recipe={"frequency_learning_rate": 3.0})
    with pytest.raises(ValueError, match=r"frequency_learning_rate is 2\.0"):
        compare([lerope, other])
    # Whatever comes first: a run that learns nothing says nothing about how others may learn.
    with pytest.raises(ValueError, match=r"frequency_learning_rate is 2\.0"):
        compare([rope, lerope, other], **FEW)


def test_frozen_frequencies_of_two_files_are_not_one_method(tmp_path):
    paths = [write_run(tmp_path / f"rope-{seed}", "rope", seed) for seed in (1, 2)]
    paths += [write_run(tmp_path / f"frozen-{seed}", f"{seed}/frequencies.json", seed) for seed in (1, 2)]
    with pytest.raises(ValueError, match="are both of method frozen and started from different frequencies"):
        compare(paths)
