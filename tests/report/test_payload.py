"""What the page is given: thinned without a change of meaning, small, and JSON that any browser reads."""

import json
import math
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from lerope.core.locks import locked
from lerope.report.collect import Bundle, collect
from lerope.report.curves import distance_edges
from lerope.report.page import embedded
from lerope.report.payload import payload, run_payload
from lerope.report.payload.bands import MAX_DISTANCES
from lerope.results import SlowestRemovals
from tests.report.example import LENGTH, _Run
from tests.scaling.run_files import write_run
from tests.train.runs import edit

MOST_BYTES = 6_000_000


@pytest.fixture(scope="module")
def lerope(example):
    return run_payload(one(example / "52M-lerope-42")).shown


def one(path: Path):
    (files,) = collect([path]).runs
    return files


def write_lines(path: Path, records) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def step_record(step: int, loss: float, seconds: float = 0.1) -> dict:
    """A line of metrics.jsonl."""
    values = {"learning_rate": 0.01, "gradient_norm": 1.0, "frequency_gradient_norm": None, "wait_seconds": 0.0}
    values |= {"tokens": 100 * step, "tokens_per_second": 1e3, "share_of_peak": None}
    return {"step": step, "loss": loss, "seconds": seconds, **values}


def bare(folder: Path, encoding: str = "lerope", name: str = "run") -> Path:
    run = _Run(folder / name, "19M", encoding, 1)
    run.write(loss=3.0)
    return run.path


def test_training_is_thinned_to_means_of_neighbours(tmp_path):
    path = bare(tmp_path)
    losses = np.random.default_rng(0).random(4000)
    write_lines(path / "metrics.jsonl", (step_record(at + 1, loss) for at, loss in enumerate(losses.tolist())))
    curve = run_payload(one(path)).shown["training"]
    assert len(curve["steps"]) == len(curve["values"]) == 400
    assert curve["values"] == pytest.approx(losses.reshape(400, 10).mean(1), rel=1e-4)
    assert curve["steps"][:2] == [5.5, 15.5]


def test_a_short_run_keeps_every_step(tmp_path):
    path = bare(tmp_path)
    write_lines(
        path / "metrics.jsonl",
        [step_record(1, 2.5), {"step": 1, "validation_loss": 2.25, "validation_tokens": 9}, step_record(2, 2.0)],
    )
    found = run_payload(one(path)).shown
    assert found["training"] == {"steps": [1, 2], "values": [2.5, 2.0]}
    assert found["validation"] == {"steps": [1], "values": [2.25]}
    assert found["validationTokens"] == 9  # what was read, whatever the recipe asked for


def test_progress_and_time_left(tmp_path):
    path = bare(tmp_path)
    write_lines(path / "metrics.jsonl", [step_record(at, 1.0, 0.5) for at in range(1, 61)])
    progress = run_payload(one(path)).shown["progress"]
    assert (progress["step"], progress["steps"]) == (60, 960)
    assert progress["secondsLeft"] == 0.5 * 900


@pytest.mark.parametrize(("encoding", "base"), [("lerope,rotary_dim=8", 1e4), ("lerope,rotary_dim=8,base=500000", 5e5)])
def test_wavelengths_follow_from_log_scales_and_the_base(tmp_path, encoding, base):
    path = bare(tmp_path, encoding)
    write_lines(
        path / "frequencies.jsonl",
        [{"step": 0, "log_scales": [0.0] * 4}, {"step": 9, "log_scales": [math.log(2), 0, None, -1]}],
    )
    found = run_payload(one(path)).shown["frequencies"]
    rope = [2 * math.pi * base ** (band / 4) for band in range(4)]
    assert found["rope"] == pytest.approx(rope, rel=1e-4)
    assert found["steps"] == [0, 9]
    assert found["wavelengths"][0] == pytest.approx(rope, rel=1e-3)
    assert found["wavelengths"][1][:2] == pytest.approx([rope[0] / 2, rope[1]], rel=1e-3)
    assert found["wavelengths"][1][2] is None
    assert found["low"] is None


def test_a_band_that_does_not_turn_has_no_wavelength(example):
    found = run_payload(one(example / "52M-prope-p0.75-42")).shown["frequencies"]
    assert found["wavelengths"][0][23] is not None
    assert found["wavelengths"][0][24:] == [None] * 8


def test_layers_with_frequencies_of_their_own_give_a_middle_and_two_ends(tmp_path):
    path = bare(tmp_path)
    write_lines(path / "frequencies.jsonl", [{"step": 0, "frequencies": [[1.0, 0.5], [4.0, 0.5]]}])
    found = run_payload(one(path)).shown["frequencies"]
    turn = 2 * math.pi
    assert found["wavelengths"][0] == pytest.approx([turn / 2, turn / 0.5], rel=1e-3)
    assert found["low"][0] == pytest.approx([turn / 4, turn / 0.5], rel=1e-3)
    assert found["high"][0] == pytest.approx([turn, turn / 0.5], rel=1e-3)


def test_no_bands_and_no_records_are_no_frequencies(tmp_path):
    path = bare(tmp_path, "nope")
    write_lines(path / "frequencies.jsonl", [{"step": 0, "frequencies": []}])
    assert run_payload(one(path)).shown["frequencies"] is None
    (path / "frequencies.jsonl").unlink()
    assert run_payload(one(path)).shown["frequencies"] is None


def test_history_is_thinned_and_keeps_both_ends(tmp_path):
    path = bare(tmp_path, "lerope,rotary_dim=4")
    write_lines(path / "frequencies.jsonl", ({"step": at, "log_scales": [at / 1000, 0]} for at in range(1001)))
    found = run_payload(one(path)).shown["frequencies"]
    assert len(found["steps"]) == 120
    assert (found["steps"][0], found["steps"][-1]) == (0, 1000)
    assert found["wavelengths"][-1][0] == pytest.approx(2 * math.pi / math.e, rel=1e-3)


@pytest.mark.parametrize("last", [1, 2, 7, 159, 160, 161, 2047, 32767])
def test_distances_are_cut_without_gap_or_overlap(last):
    edges = distance_edges(last, MAX_DISTANCES)
    assert edges[0] == 1
    assert edges[-1] == last + 1
    assert (np.diff(edges) >= 1).all()
    assert len(edges) <= 161


def test_contributions_are_means_over_groups_of_distances(example, lerope):
    curves = lerope["bands"]["curves"]
    mean = load_file(example / "52M-lerope-42" / "results" / "bands.safetensors")["mean"]
    edges, pairs = curves["edges"], LENGTH - np.arange(LENGTH)
    for band in (0, 11, 31):
        wanted = [np.average(mean[band, start:stop], weights=pairs[start:stop]) for start, stop in pairwise(edges)]
        assert curves["mean"][band] == pytest.approx(wanted, rel=1e-3, abs=1e-6)
    assert edges[-1] == LENGTH
    assert lerope["bands"]["dominantBand"] == 11


def test_curves_that_are_gone_leave_the_rest(example, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(example / "52M-lerope-42", path)
    (path / "results" / "bands.safetensors").unlink()
    (path / "results" / "phasors.safetensors").write_bytes(b"no")
    found = run_payload(one(path)).shown
    assert found["bands"]["curves"] is None
    assert found["bands"]["dominantBand"] == 11
    assert found["phasors"] is None


def test_phasors_keep_the_resultant_of_all_distances(example, lerope):
    found = lerope["phasors"]
    written = json.loads((example / "52M-lerope-42" / "results" / "phasors.json").read_text())["bands"]
    for field in ("gradient", "coherence", "direction"):
        assert found[field] == pytest.approx([band[field] for band in written], rel=1e-3), field
    sizes = np.hypot(found["real"], found["imaginary"])
    assert sizes.max() <= 1.0001
    assert len(found["distances"]) == sizes.shape[1] <= 160
    assert found["distances"][:3] == [1, 2, 3]
    assert all(value == round(value, 4) for value in found["real"][0])


def test_a_run_has_one_loss_and_says_what_it_is_of(example, tmp_path):
    scored = run_payload(one(example / "52M-lerope-42")).shown
    assert scored["loss"] == {"value": pytest.approx(3.3995, abs=1e-5), "of": "evaluation"}
    alone = run_payload(one(example / "52M-lerope-42-length1024")).shown
    assert alone["loss"] == {"value": 3.38, "of": "validation"}
    path = bare(tmp_path)
    (path / "results" / "training.json").unlink()  # on its way: what metrics say
    write_lines(path / "metrics.jsonl", [{"step": 1, "validation_loss": 2.25, "validation_tokens": 9}])
    assert run_payload(one(path)).shown["loss"] == {"value": 2.25, "of": "validation"}


def test_epochs_are_how_often_the_data_is_read(example, tmp_path):
    # 3,840 steps of 131,072 tokens, of data with 100 million.
    assert run_payload(one(example / "52M-lerope-42")).shown["progress"]["epochs"] == 5.03
    path = bare(tmp_path)
    run = json.loads((path / "run.json").read_text())
    del run["starts"][0]["num_data_tokens"]  # as earlier runs have it
    (path / "run.json").write_text(json.dumps(run))
    assert run_payload(one(path)).shown["progress"]["epochs"] is None


def test_gaps_are_held_against_the_run_that_read_the_same_batches(example, shown):
    found = {run["id"]: run["gap"] for run in shown["runs"]}
    with_gap = {name for name, gap in found.items() if gap is not None}
    assert {"52M-lerope-42", "52M-lerope-43", "217M-prope-p0.75-42"} <= with_gap
    assert not {"52M-rope-42", "52M-lerope-42-length1024"} & with_gap
    own, base = (
        {record.step: record.loss for record in one(example / name).metrics.steps}
        for name in ("52M-lerope-42", "52M-rope-42")
    )
    last = [step for step in own if step >= 3840 * 7 / 8]
    wanted = np.mean([own[step] - base[step] for step in last])
    assert found["52M-lerope-42"]["values"][-1] == pytest.approx(wanted, rel=1e-3)


def test_needles_are_grids_of_depth_by_column(lerope):
    within, beyond = sorted(lerope["needles"], key=lambda needle: needle["long"])
    assert within["columns"] == [[LENGTH, number] for number in (1, 3, 7, 15, 31)]
    assert beyond["columns"] == [[LENGTH * factor, 0] for factor in (1, 2, 4, 8, 16)]
    assert within["depths"] == [depth / 10 for depth in range(11)]
    rate = within["fields"].index("rate")
    assert within["cells"][5][0][rate] == 1.0
    assert within["cells"][5][4][rate] == 0.45
    assert not within["floor"]


def test_names_tell_runs_apart(tmp_path):
    for name in ("x", "y", "a/x", "b/x"):
        bare(tmp_path, name=name)
    bundle = collect([tmp_path])
    names = {run["path"]: run["id"] for run in payload(bundle)["runs"]}
    assert names == {str(tmp_path / name): name for name in ("x", "y", "a/x", "b/x")}


def test_the_verdict_is_of_the_largest_rung_with_several_seeds(shown):
    assert (shown["verdict"]["rung"], shown["verdict"]["method"]) == ("52M", "lerope")
    assert shown["verdict"]["text"].startswith("LeRoPE is 0.0105 nats below RoPE (95 % interval")
    (effect,) = [e for e in shown["comparison"]["effects"] if (e["rung"], e["method"]) == ("52M", "lerope")]
    assert effect["low"] < effect["difference"] < effect["high"] < 0
    assert {entry["method"] for entry in shown["multipliers"]["multipliers"]} == {"lerope", "prope"}
    assert 0 < len(shown["ticked"]) <= 12


def test_runs_stand_by_size_encoding_and_seed_and_the_verdicts_are_ticked(shown):
    names = [run["id"] for run in shown["runs"]]
    study = [run for run in shown["runs"] if any(one["usual"] for one in run["evaluations"])]
    assert names[: len(study)] == [run["id"] for run in study]
    assert [run["rung"] for run in study] == ["19M"] * 3 + ["52M"] * 9 + ["217M"] * 3
    assert names[3:6] == ["52M-rope-42", "52M-rope-43", "52M-rope-44"]
    assert {run["rung"] for run in shown["runs"] if run["id"] in shown["ticked"]} == {shown["verdict"]["rung"]}
    methods = {run["method"] for run in shown["runs"] if run["id"] in shown["ticked"]}
    assert methods == {"rope", "rope,base=500000", "prope", "lerope", "frozen"}
    assert shown["ticked"] == [name for name in names if name in shown["ticked"]]


def test_the_slowest_bands_are_there_by_meaning(example, lerope):
    result = SlowestRemovals.load(example / "52M-lerope-42" / "results" / "slowest.json")
    assert lerope["slowest"]["numDocuments"] == result.num_documents
    assert lerope["slowest"]["suppressed"] == 20
    for meaning in ("contribution", "frequency"):
        got = lerope["slowest"]["meanings"][meaning]
        assert [row[0] for row in got] == list(range(1, 33))
        wanted = [[row["increase"], row["standard_error"]] for row in result.rows(meaning)]
        assert np.array([row[1:] for row in got]) == pytest.approx(np.array(wanted), rel=1e-3)


def test_without_a_verdict_the_page_says_what_to_run(tmp_path):
    rope = bare(tmp_path, "rope", "my runs/a")
    found = payload(collect([tmp_path]))["verdict"]
    assert found["text"] is None
    assert found["missing"]["command"] == "lerope train 19M --encoding lerope"
    other = bare(tmp_path, "lerope", "my runs/b")
    found = payload(collect([tmp_path]))["verdict"]["missing"]
    assert found["command"] == f"lerope eval '{rope}' '{other}'"
    for path in (rope, other):
        edit(path / "run.json", finished=False)
    found = payload(collect([tmp_path]))["verdict"]["missing"]
    assert "stopped before their end" in found["text"]
    assert found["command"] == "lerope train 19M"
    with locked(other):
        found = payload(collect([tmp_path]))
    assert "still training" in found["verdict"]["missing"]["text"]
    assert {run["method"]: run["stopped"] for run in found["runs"]} == {"rope": True, "lerope": False}


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (
            "lerope train demo --encoding rope --data data/small --steps 40 --row-length 256 --batch-tokens 2048",
            "lerope train demo --encoding lerope --data data/small --steps 40 --row-length 256 --batch-tokens 2048",
        ),
        (
            "torchrun --nproc-per-node=2 -m lerope train 19M --encoding=rope,base=500 --out runs/mine --data 'my data'",
            "torchrun --nproc-per-node=2 -m lerope train 19M --encoding lerope --out OUT --data 'my data'",
        ),
        ("lerope demo --out demo --steps 300", "lerope demo --out demo --steps 300"),
        ("my_script.py", "lerope train 19M --encoding lerope --seed 1 --data data/c4-encoded"),
    ],
)
def test_the_command_for_a_second_encoding_keeps_all_that_a_pair_has_in_common(tmp_path, command, wanted):
    path = bare(tmp_path, "rope")
    starts = json.loads((path / "run.json").read_text())["starts"]
    edit(path / "run.json", starts=[{**starts[0], "command": command}])
    found = payload(collect([path]))["verdict"]["missing"]
    assert found["command"] == wanted.replace("OUT", str(tmp_path / "19M-lerope-1"))


def test_runs_that_were_evaluated_differently_do_not_keep_others_from_a_verdict(example, tmp_path):
    """As with `lerope eval --max-tokens`: the most that are alike are compared, and a note tells of the others."""
    names = ("52M-rope-42", "52M-lerope-42", "52M-rope-43", "52M-lerope-43", "217M-rope-42", "217M-lerope-42")
    for name in names:
        shutil.copytree(example / name, tmp_path / name)
    for name in names[4:]:
        file = tmp_path / name / "results" / "eval.json"
        edit(file, settings={**json.loads(file.read_text())["settings"], "max_tokens": 1000})
    found = payload(collect([tmp_path]))
    assert found["verdict"]["rung"] == "52M"
    assert [note for note in found["notes"] if note.startswith("2 of the evaluated runs")]
    assert {effect["rung"] for effect in found["comparison"]["effects"]} == {"52M"}


def test_damaged_records_become_a_note(tmp_path):
    path = bare(tmp_path)
    good = [json.dumps(step_record(1, 2.0)), json.dumps(step_record(2, 1.0))]
    odd = json.dumps(step_record(3, 1.0)).replace("1.0", "NaN", 1)
    (path / "metrics.jsonl").write_text("\n".join([good[0], "not json", odd, good[1]]) + "\n")
    found = payload(collect([path]))
    assert found["runs"][0]["training"]["steps"] == [1, 2]
    assert any("metrics.jsonl has 2 damaged lines" in note for note in found["notes"])


def test_provenance_holds_what_is_needed_to_repeat_a_run(lerope):
    found = lerope["provenance"]
    assert found["command"] == "lerope train 52M"
    assert found["data"] == "c" * 64
    assert found["recipe"]["steps"] == 3840
    assert found["start"]["commit"] == "a" * 40
    assert {
        "title": "loss on validation, windows of 512 tokens",
        "file": "eval.json",
        "date": "2026-01-02T03:04:05+00:00",
        "lerope": "0.1.0",
        "commit": "a" * 40,
        "torch": None,
        "gpu": None,
    } in found["results"]


def test_a_dozen_runs_as_long_as_the_paper_s_stay_below_the_limit(tmp_path):
    run = _Run(tmp_path / "long", "217M", "lerope", 42, row_length=2048)
    run.write(loss=3.0)
    for fill in (run.frequencies, run.bands, run.needle, run.needle_long):
        fill()
    for fill in (run.evaluation, run.extrapolation, run.ablation, run.phasors):
        fill(3.0)
    noise = np.random.default_rng(0)
    write_lines(run.path / "metrics.jsonl", (step_record(at + 1, noise.random()) for at in range(20_000)))
    write_lines(
        run.path / "frequencies.jsonl", ({"step": at, "log_scales": noise.random(32).tolist()} for at in range(1000))
    )
    files = one(run.path)
    found = payload(Bundle([files] * 12), [run_payload(files)] * 12)
    assert len(found["runs"]) == 12
    assert all(
        run[part] for run in found["runs"] for part in ("bands", "phasors", "ablation", "needles", "extrapolation")
    )
    assert 1_000_000 < len(embedded(found).encode()) < MOST_BYTES


def test_embedded_json_cannot_end_its_element():
    text = "</script><!--<script>&amp;\u2028\u2029'\""
    found = embedded({"name": text})
    assert not set("<>&\u2028\u2029") & set(found)
    assert json.loads(found) == {"name": text}


def test_runs_that_start_from_others_leave_the_verdict_to_the_rest(tmp_path):
    """One of the same encoding, seed and length as another is no second run of it."""
    for encoding, loss in (("rope", 3.0), ("lerope", 2.99)):
        write_run(tmp_path / f"52M-{encoding}-42", encoding, 42, loss)
    write_run(tmp_path / "later", "lerope", 42, 2.5, recipe={"start_from": "52M-lerope-42", "learn": "rotation"})
    bundle = collect([tmp_path])
    assert payload(bundle)["verdict"]["text"].startswith("LeRoPE is 0.0100 nats below RoPE")
    (note,) = bundle.notes
    assert note.startswith("1 of the evaluated runs have other data, train lengths or recipes, started from other")
    assert f"are not compared ({tmp_path / 'later'});" in note


def test_runs_of_other_steps_or_shapes_leave_the_verdict_to_the_rest(tmp_path):
    """A folder holds several studies: shorter runs, and heads of another size, pair with none of the main one."""
    for encoding, loss in (("rope", 3.0), ("lerope", 2.99), ("prope", 3.01)):
        write_run(tmp_path / f"52M-{encoding}-42", encoding, 42, loss)
        write_run(tmp_path / f"52M-{encoding}-42-wider", encoding, 42, loss - 0.5, recipe={"head_dim": 128})
    write_run(tmp_path / "52M-rope-43", "rope", 43, 3.0)
    write_run(tmp_path / "52M-lerope-43", "lerope", 43, 2.99)
    write_run(tmp_path / "52M-lerope-42-short", "lerope", 42, 3.5, recipe={"steps": 30})
    bundle = collect([tmp_path])
    assert payload(bundle)["verdict"]["text"].startswith("LeRoPE is 0.0100 nats below RoPE")
    assert bundle.comparison is not None
    assert {row["num_seeds"] for row in bundle.comparison.effects if row["method"] == "lerope"} == {2}
    (note,) = bundle.notes
    assert note.startswith("4 of the evaluated runs have other data, train lengths or recipes")
