"""Many GPUs on paper: memory against torch's fake ranks, and the arithmetic of steps against numbers done by hand."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from lerope.cli.main import main
from lerope.core.ladder import rung, total_parameters
from lerope.launch.machine import Fit, Machine, Way
from lerope.launch.steptime import best_step, checkpoint_bytes, step_time
from lerope.model.accounting import memory_per_gpu
from lerope.model.gpus import gpu_named
from tests.train.runs import TINY, tiny_corpus, tiny_recipe, tiny_setup


def check_planned_memory(name, *ways):
    """Against fake ranks, each way to share in turn: starting torch takes longer than they do."""
    arguments = [f"{number},{parallel}" for number, parallel in ways]
    command = [sys.executable, "-W", "ignore", "-m", "tests.launch.fake_ranks", name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    held = list(map(int, done.stdout.split()))
    planned = [
        memory_per_gpu(rung(name), 2048, 1, compiled=False, num_gpus=number, gpus_per_node=8, parallel=parallel).total
        for number, parallel in ways
    ]
    assert planned == pytest.approx(held, rel=0.1)


def test_planned_memory_is_what_fake_ranks_hold():
    check_planned_memory("52M", (8, "fsdp"), (64, "hybrid"), (512, "fsdp"))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["fsdp", "hybrid"])
def test_planned_memory_of_the_largest_rung(parallel):
    check_planned_memory("2.52B", *((number, parallel) for number in (8, 64, 512)))


MACHINE = Machine(
    gpus=[gpu_named("H100-80G")],
    num_gpus=64,
    gpus_per_node=8,
    row_length=2048,
    batch_tokens=131_072,
    utilisation=0.4,
)


def step(parallel, number=64, rows=1, recompute=False, network=50e9):
    machine, way = replace(MACHINE, num_gpus=number), Way(parallel=parallel, recompute=recompute)
    fit = Fit(way=way, micro_batch_rows=rows, memory=machine.memory(rung("2.52B"), way, rows))
    return step_time(rung("2.52B"), machine, machine.gpus[0], fit, network)


def test_a_step_by_hand():
    """2.52B: 30 layers of width 2,560; S = 4 bytes of each parameter."""
    blocks, head = 30 * 12 * 2560**2, 32_000 * 2560
    size = 4 * (blocks + 2 * head + 30 * (2 * 2560 + 2 * 64) + 2560)
    again = 4 * (blocks + head)
    one_node = step("ddp", 8, rows=8)
    assert one_node.communication_seconds == pytest.approx(2 * size * 7 / 8 / 450e9, rel=1e-12)
    assert step("ddp").communication_seconds == pytest.approx(2 * size * 63 / 64 / 450e9, rel=1e-12)
    slow = step("ddp", network=5e9)  # now it is the network: 7/8 of S into a node with 8 shares of it
    assert slow.communication_seconds == pytest.approx(2 * size * 7 / 8 / 40e9, rel=1e-12)
    assert step("fsdp", network=5e9).communication_seconds == pytest.approx(
        (2 * size + again) * 7 / 8 / 40e9, rel=1e-12
    )
    hybrid = (2 * size + again) * 7 / 8 / 450e9 + 2 * size / 8 * 7 / 8 / 50e9
    assert step("hybrid").communication_seconds == pytest.approx(hybrid, rel=1e-12)
    assert step("fsdp", 8, rows=2).communication_seconds == pytest.approx(
        4 * step("fsdp", 8, rows=8).communication_seconds
    )
    flops = 131_072 * 6 * (blocks + head + 30 * 2048 * 2560)
    assert one_node.compute_seconds == pytest.approx(flops / (8 * 989.4e12 * 0.4), rel=0.01)
    assert step("ddp", 8, 8, recompute=True).compute_seconds == pytest.approx(one_node.compute_seconds * 4 / 3)
    assert one_node.shortest_seconds == one_node.compute_seconds
    assert one_node.longest_seconds == one_node.compute_seconds + one_node.communication_seconds
    assert one_node.read_bytes_per_second == pytest.approx(2 * 131_072 / one_node.compute_seconds)


def test_one_gpu_tells_nobody_anything_and_a_small_one_has_no_step():
    alone = replace(MACHINE, num_gpus=1)
    assert best_step(rung("52M"), alone, MACHINE.gpus[0]).communication_seconds == 0
    assert best_step(rung("2.52B"), alone, gpu_named("RTX 4090")) is None


def test_a_checkpoint_has_the_bytes_that_are_planned(tmp_path):
    from lerope.train.job import train

    out = tmp_path / "run"
    train(tiny_recipe(steps=2), tiny_corpus(tmp_path / "data"), out, tiny_setup())
    files = [path for path in (out / "checkpoints").rglob("*") if path.is_file()]
    # A tiny model: beside its tensors, what describes them shows.
    assert sum(path.stat().st_size for path in files) == pytest.approx(checkpoint_bytes(TINY), rel=0.15)


def test_the_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    main(["plan", "2.52B", "--gpus", "64", "--gpu", "H100-80G"])
    text = capsys.readouterr().out
    assert "A step on 64 GPUs, on paper" in text
    assert "It stops at 64 GPUs, a row of the batch for each" in text
    main(["plan", "2.52B", "--gpus", "64", "--gpu", "H100-80G", "--disk", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    size = 12 * (total_parameters(rung("2.52B")) + 30 * (2 * 2560 + 2 * 64) + 2560)
    assert found["checkpoint"] == {"bytes": size, "write_seconds": pytest.approx(size / 1e9)}
    assert found["steps_on_paper"][0]["communication_seconds"] == pytest.approx(step("ddp").communication_seconds)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--gpus", "512"], "got 512: more than 64 need a larger batch, which is another recipe."),
        (["--network", "0"], "network must be positive, in GB/s; got 0."),
        (["--disk", "-1"], "disk must be positive, in GB/s; got -1."),
    ],
)
def test_bad_input_is_one_sentence(capsys, options, sentence):
    with pytest.raises(SystemExit) as stop:
        main(["plan", "2.52B", *options])
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err
