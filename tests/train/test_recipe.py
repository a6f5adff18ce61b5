"""The recipe against the paper's text, computed a second way."""

import json
import math
from dataclasses import asdict, replace

import pytest
import torch

import lerope
from lerope.core.files import parse_json
from lerope.core.recipe import Recipe, Setup, recipe
from lerope.train.parallel import usual_precision
from lerope.train.schedule import factor

# Rung: steps, learning rate index, torch weight decay (reproduction of the paper's tables, five digits).
PAPER = {
    "52M": (7_880, 13, 0.091888),
    "217M": (33_040, 17, 0.087661),
    "608M": (92_760, 20, 0.088314),
    "1.34B": (204_320, 22, 0.080188),
    "2.52B": (385_000, 23, 0.060183),
}


@pytest.mark.parametrize("rung", PAPER)
def test_the_paper_s_table(rung):
    steps, index, decay = PAPER[rung]
    made = recipe(rung, precision="bf16")
    assert (made.steps, made.warmup_steps, made.schedule) == (steps, 1000, "cosine")
    assert made.learning_rate == pytest.approx(math.sqrt(0.5) ** index, rel=1e-12)
    assert made.torch_weight_decay == pytest.approx(decay, abs=5e-7)
    assert (made.row_length, made.batch_tokens, made.batch_rows) == (2048, 131_072, 64)
    assert (made.betas, made.eps, made.max_norm, made.frequency_max_norm) == ((0.9, 0.95), 1e-8, 1.0, 1.0)
    assert made.frequency_learning_rate == made.learning_rate
    assert usual_precision("auto") == ("bf16" if torch.cuda.is_available() else "float32")
    assert (usual_precision("cpu"), usual_precision("cuda:1")) == ("float32", "bf16")
    assert made.name == f"{rung}-lerope-42"


def test_a_whole_schedule_on_real_tensors():
    """Learning rate, decay and clip factor at every step of the 52M recipe, from what AdamW does to parameters.

    The table: gamma rises to 1 over 1,000 steps and falls as a half cosine; a decayed weight without a gradient shrinks
    by the factor 1 - gamma 8 / T, undecayed ones stay; a constant gradient moves alpha by gamma eta.
    """
    made = recipe("52M")
    total, eta = 7_880, 2**-6.5
    model = torch.nn.ModuleDict(
        {"layer": torch.nn.Linear(1, 1, bias=False), "table": torch.nn.Embedding(1, 1), "encoding": lerope.LeRoPE(4)}
    ).double()
    groups = lerope.param_groups(model, made.learning_rate, made.torch_weight_decay)
    peaks = [group["lr"] for group in groups]
    optimizer = torch.optim.AdamW(groups, betas=made.betas, eps=made.eps)
    exponent = 0.0
    with torch.no_grad():
        for step in range(total):
            gamma = factor(made.schedule, step, made.steps, made.warmup_steps)
            want = (step + 1) / 1000 if step < 1000 else (1 + math.cos(math.pi * (step - 1000) / 6880)) / 2
            assert gamma == pytest.approx(want, abs=1e-12)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * gamma
            model["layer"].weight.fill_(1.0)
            model["table"].weight.fill_(1.0)
            alpha = model["encoding"].alpha
            alpha.fill_(0.0)
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
            alpha.grad = torch.full_like(alpha, 0.3)
            optimizer.step()
            assert float(model["layer"].weight) == pytest.approx(1 - want * 8 / total, abs=1e-13)
            assert float(model["table"].weight) == 1.0
            assert float(alpha[0]) == pytest.approx(-want * eta, rel=1e-6)
            exponent -= math.log(float(model["layer"].weight))
    assert exponent == pytest.approx(4.0, abs=0.01)


def test_the_schedule_ends_at_zero_and_other_kinds():
    assert factor("cosine", 1000, 7880, 1000) == 1.0
    assert factor("cosine", 7879, 7880, 1000) == pytest.approx(0, abs=1e-6)
    assert [factor("constant", step, 10, 2) for step in (0, 1, 2, 9)] == [0.5, 1.0, 1.0, 1.0]
    assert [factor("wsd", step, 10, 2) for step in (0, 1, 2, 7, 8, 9)] == [0.5, 1.0, 1.0, 1.0, 1.0, 0.5]
    assert factor("cosine", 0, 1, 0) == 1.0


def test_clipping_is_by_two_norms():
    """The model's and the frequencies' gradients are scaled by min(1, max_norm / norm), each by its own."""
    model = torch.nn.ModuleDict({"layer": torch.nn.Linear(3, 2, bias=False), "encoding": lerope.LeRoPE(4)})
    for scale, frequency_scale in ((5.0, 0.1), (0.2, 7.0), (3.0, 4.0)):
        weight, alpha = model["layer"].weight, model["encoding"].alpha
        weight.grad, alpha.grad = torch.full((2, 3), scale), torch.full((2,), frequency_scale)
        norm, frequency_norm = scale * math.sqrt(6), frequency_scale * math.sqrt(2)
        got = lerope.clip_grad_norm_(model, 1.0, 1.0)
        assert float(got.model) == pytest.approx(norm, rel=1e-6)
        assert float(got.frequencies) == pytest.approx(frequency_norm, rel=1e-6)
        assert float(weight.grad[0, 0]) == pytest.approx(scale * min(1, 1 / norm), rel=1e-5)
        assert float(alpha.grad[0]) == pytest.approx(frequency_scale * min(1, 1 / frequency_norm), rel=1e-5)


def test_other_heads_of_the_same_width():
    made, usual = recipe("52M", "rope", head_dim=128), recipe("52M", "rope")
    assert (made.model.head_dim, made.model.num_heads, made.model.width) == (128, 4, usual.model.width)
    assert (made.steps, made.learning_rate, made.compute) == (usual.steps, usual.learning_rate, usual.compute)


def test_recipes_go_to_json_and_back():
    made = recipe("19M", "rope,base=500000", 3, steps=100, vocab_size=500, activation="relu2")
    assert parse_json(json.dumps(asdict(made)).encode(), Recipe, "here", "mend it") == made
    assert (made.warmup_steps, made.model.vocab_size, made.model.activation) == (14, 500, "relu2")
    assert made.name == "19M-rope-base500000-3"
    assert replace(made, encoding="a/b/mine.json").name == "19M-frozen-mine-3"
    assert replace(made, encoding="runs/52M-x-7/model/frequencies.json").name == "19M-frozen-52M-x-7-3"
    assert replace(made, encoding="pack.age:Wavelet,scale=2").name == "19M-Wavelet-scale2-3"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": 0}, "steps must be a positive whole number; got 0"),
        ({"steps": -3}, "steps must be a positive whole number; got -3"),
        ({"row_length": 100}, "batch_tokens must hold whole rows of 100 tokens; got 131,072"),
        ({"learning_rate": -1.0}, "learning_rate must be positive; got -1.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number; got nan"),
        ({"weight_decay": -1.0}, "weight_decay must be .*steps = 7,880.*got -1.0"),
        ({"weight_decay": 9.0, "steps": 9}, "weight_decay must be .*steps = 9.*got 9.0"),
        ({"warmup_steps": 10**6}, "warmup_steps must be .*steps = 7,880.*got 1,000,000"),
        ({"schedule": "linear"}, "schedule must be one of cosine, wsd, constant; got 'linear'"),
        ({"precision": "fp8"}, "precision must be one of bf16, float32; got 'fp8'"),
        ({"max_norm": 0}, "max_norm must be positive; got 0"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers.*1.0"),
        ({"seed": -1}, "seed must be a whole number.*got -1"),
        ({"head_dim": 96}, "head_dim must divide the width of 512; got 96"),
        ({"head_dim": 1024}, "head_dim must divide the width of 512; got 1,024"),
        ({"head_dim": 3}, "head_dim"),
        ({"activation": "swiglu"}, "activation must be one of gelu, relu2; got 'swiglu'"),
        ({"vocab_size": 0}, "vocab_size must be a positive whole number"),
        ({"lr": 3}, "lr is not"),
    ],
)
def test_bad_recipes_are_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        recipe("52M", **changes)


def test_an_unknown_rung_is_one_sentence():
    with pytest.raises(ValueError, match=r"rung must be one of demo, 19M, .*; got '53M'"):
        recipe("53M")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parallel": "tensor"}, "parallel must be one of ddp, fsdp, hybrid; got 'tensor'"),
        ({"checkpoint_steps": 0}, "checkpoint_steps must be a positive whole number"),
        ({"micro_batch_rows": 0}, "micro_batch_rows must be a positive whole number"),
        ({"trackers": ("mlflow",)}, "trackers must be one of tensorboard, wandb, trackio; got 'mlflow'"),
    ],
)
def test_bad_setups_are_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        Setup(**changes)
