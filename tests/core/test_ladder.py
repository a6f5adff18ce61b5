"""Counts against the paper's tables and against a model that is really built."""

import pytest
import torch

import lerope
from lerope.core import ladder
from lerope.core.ladder import LADDER, rung
from lerope.model.transformer import Transformer

# Layers, width, MLP width, N_ne and N_tot as the paper prints them; then steps, tokens and C of reproduction.md.
PAPER = {
    "52M": (6, 512, 2048, "18.87M", "51.64M", 7_880, 1.0328e9, 1.1697e17),
    "217M": (12, 1024, 4096, "150.99M", "216.53M", 33_040, 4.3306e9, 3.9234e18),
    "608M": (18, 1536, 6144, "509.61M", "607.91M", 92_760, 12.158e9, 3.7176e19),
    "1.34B": (24, 2048, 8192, "1.21B", "1.34B", 204_320, 26.781e9, 1.9410e20),
    "2.52B": (30, 2560, 10_240, "2.36B", "2.52B", 385_000, 50.463e9, 7.1434e20),
}


def printed(count: int) -> str:
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_table_to_its_last_digit(name):
    layers, width, mlp, blocks, total, steps, tokens, compute = PAPER[name]
    config = rung(name)
    plan = ladder.plan(config)
    assert (config.num_layers, config.width, config.mlp_width) == (layers, width, mlp)
    assert (printed(plan.block_parameters), printed(plan.total_parameters)) == (blocks, total)
    assert plan.steps == steps
    assert plan.tokens == ladder.TOKENS_PER_PARAMETER * plan.total_parameters
    assert plan.tokens == pytest.approx(tokens, rel=5e-5)
    assert plan.compute == pytest.approx(compute, rel=5e-5)


@pytest.mark.parametrize("name", LADDER)
def test_counts_are_those_of_a_real_model(name):
    config = rung(name)
    with torch.device("meta"):
        model = Transformer(config, lerope.RoPE(64))
    counted = ladder.total_parameters(config) + ladder.gain_parameters(config)
    assert sum(p.numel() for p in model.parameters()) == counted


def test_the_rung_below_the_papers_ladder():
    assert ladder.total_parameters(rung("19M")) == 18_743_296
    assert [ladder.gain_parameters(rung(n)) for n in ("52M", "217M", "2.52B")] == [7_424, 27_136, 160_000]


def test_flops_count_matrices_head_and_half_of_the_attention_square():
    config = rung("52M")
    want = 6 * (12 * 512**2 * 6 + 32_000 * 512) + 6 * 6 * 2048 * 512
    assert ladder.flops_per_token(config, 2048) == want


def test_bad_plans_are_refused():
    with pytest.raises(ValueError, match=r"batch_tokens must hold whole rows of 2,048 tokens; got 1,000"):
        ladder.plan(rung("52M"), batch_tokens=1000)
    with pytest.raises(ValueError, match="row_length must be a positive whole number; got 0"):
        ladder.plan(rung("52M"), row_length=0)


def test_a_run_has_at_least_one_step():
    with pytest.raises(ValueError, match="batch_tokens must be at most the run's 68,157,440; got 268,435,456"):
        ladder.plan(rung("demo"), batch_tokens=2**28)
