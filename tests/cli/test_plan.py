"""lerope plan, as a user runs it."""

import json

import pytest

from lerope.cli.main import main
from lerope.core.ladder import LADDER, rung
from lerope.model.accounting import memory_per_gpu
from lerope.model.gpus import GPUS

# The paper's ladder as printed: layers, embedding dimension, MLP hidden, N_ne, N_tot. Heads are 4/3 of the layers.
# Steps, and tokens and compute to two decimals, are the recipe's: 20 tokens per parameter, 131,072 per step, 6 N_ne D.
PAPER = {
    "52M": ("6", "512", "2,048", "8", "18.87M", "51.64M", "1.03B", "7,880", "1.17e17"),
    "217M": ("12", "1,024", "4,096", "16", "150.99M", "216.53M", "4.33B", "33,040", "3.92e18"),
    "608M": ("18", "1,536", "6,144", "24", "509.61M", "607.91M", "12.16B", "92,760", "3.72e19"),
    "1.34B": ("24", "2,048", "8,192", "32", "1.21B", "1.34B", "26.78B", "204,320", "1.94e20"),
    "2.52B": ("30", "2,560", "10,240", "40", "2.36B", "2.52B", "50.46B", "385,000", "7.14e20"),
}


@pytest.fixture
def plan(capsys, monkeypatch):
    """Runs the command at a width and returns what it printed."""

    def run(*args: str, columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        main(["plan", *args])
        return capsys.readouterr().out

    return run


def lines_of(text: str, first: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split()[:1] == [first]]


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("columns", [80, 120])
def test_the_ladder_is_the_papers_table_to_its_last_digit(plan, name, columns):
    table, time = lines_of(plan(columns=columns), name)
    assert tuple(table[1:]) == PAPER[name]
    assert len(time) == 1 + 2 * len(GPUS)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("args", [(), ("2.52B",), ("2.52B", "--num-gpus", "16"), ("52M", "--gpu", "H200")])
def test_nothing_is_cut_or_wrapped(plan, args, columns):
    text = plan(*args, columns=columns)
    assert "…" not in text
    assert all(len(line) <= columns for line in text.splitlines())
    header = next(line for line in text.splitlines() if "H200" in line)
    assert ("A100-80G" in header) == ("--gpu" not in args)


def test_a_rung_in_full(plan):
    text = plan("52M")
    for fact in ("18.87M", "51.64M", "7,424", "LeRoPE adds", "1.170e17", "2.575e17", "64 rows of 2,048", "40 %"):
        assert fact in text
    assert "FSDP2" not in text, "one GPU has nothing to share"
    assert "hybrid" not in plan("52M", "--num-gpus", "8")
    assert "hybrid" in plan("52M", "--num-gpus", "16")


def test_json_says_the_same(plan):
    found = json.loads(plan("217M", "--gpu", "NVIDIA H200", "--num-gpus", "8", "--json"))
    assert (found["rung"], found["steps"], found["encoding_parameters"]) == ("217M", 33_040, 32)
    assert found["compute"] == 6 * found["block_parameters"] * found["tokens"]
    (gpu,) = found["gpus"]
    assert gpu["seconds"] == pytest.approx(found["flops"] / (8 * 989.4e12 * 0.4))
    assert [(f["parallel"], f["recompute"]) for f in found["fits"]] == [
        ("ddp", False),
        ("ddp", True),
        ("fsdp", False),
        ("fsdp", True),
    ]
    assert {f["micro_batch_rows"] for f in found["fits"]} == {8}
    memory = memory_per_gpu(rung("217M"), 2048, 8, num_gpus=8, parallel="fsdp")
    assert found["fits"][2]["memory"]["total"] == memory.total
    parts = found["one_row"][0]["memory"]
    assert parts.pop("total") == sum(parts.values())


def test_json_of_the_ladder(plan):
    rungs = json.loads(plan("--json"))["rungs"]
    assert [each["rung"] for each in rungs] == list(LADDER)
    assert [gpu["name"] for gpu in rungs[0]["gpus"]] == list(GPUS)


def test_what_does_not_fit_says_so(plan):
    found = json.loads(plan("2.52B", "--gpu", "RTX 4090", "--json"))
    assert [f["micro_batch_rows"] for f in found["fits"]] == [None, None]
    assert "no (48)" in plan("2.52B", "--gpu", "RTX 4090")


def test_flags_change_the_plan(plan):
    small = json.loads(plan("52M", "--vocab-size", "1000", "--row-length", "512", "--batch-tokens", "65536", "--json"))
    assert small["total_parameters"] == 12 * 512**2 * 6 + 2 * 1000 * 512
    assert small["tokens"] == small["steps"] * 65_536
    slow, fast = (json.loads(plan("52M", "--utilisation", u, "--json"))["gpus"][0]["seconds"] for u in (".2", ".8"))
    assert slow == pytest.approx(4 * fast)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["seed"],
            "name must be a rung, demo, 19M, 52M, 217M, 608M, 1.34B, 2.52B, or a study, main, seeds, base, p, "
            "parametrization, sharing, fixed, lengths, code, extrapolation, needle; got 'seed'; did you mean seeds?",
        ),
        (["52M", "--gpu", "V100"], "gpu must be one of A100-80G, H100-80G, H200, B200, L40S, RTX 4090; got 'V100'."),
        (["--num-gpus", "0"], "num_gpus must be a positive whole number; got 0."),
        (["52M", "--num-gpus", "-2"], "num_gpus must be a positive whole number; got -2."),
        (
            ["52M", "--num-gpus", "7"],
            "num_gpus must divide the 64 rows of 2,048 tokens",
        ),
        (["--num-gpus", "12"], "num_gpus must be a multiple of gpus_per_node = 8 or at most that; got 12."),
        (["52M", "--gpus-per-node", "0"], "gpus_per_node must be a positive whole number; got 0."),
        (["52M", "--row-length", "0"], "row_length must be a positive whole number; got 0."),
        (["52M", "--batch-tokens", "1000"], "batch_tokens must hold whole rows of 2,048 tokens; got 1,000."),
        (["demo", "--batch-tokens", str(2**28)], "batch_tokens must be at most the run's 68,157,440; got 268,435,456."),
        (["52M", "--vocab-size", "-1"], "vocab_size must be a positive whole number; got -1."),
        (
            ["52M", "--utilisation", "0"],
            "utilisation must be a share of the peak, above 0 and at most 1; got 0.0.",
        ),
        (["52M", "--utilisation", "nan"], "utilisation must be a finite number; got nan."),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, args, sentence):
    with pytest.raises(SystemExit) as end:
        main(["plan", *args])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err.startswith(f"lerope plan: {sentence}")
    assert err.count("\n") == 1


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as end:
        main(["plan", "--help"])
    assert end.value.code == 0
    assert "lerope plan 217M --gpu H200 --num-gpus 8" in capsys.readouterr().out
