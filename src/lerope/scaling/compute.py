"""The compute of a rung, C = 6 N D, from the ladder's rule alone."""

# Layers of each rung of the paper's recipe; `lerope.model.config` has the whole of it, and needs torch.
LAYERS = {"19M": 3, "52M": 6, "217M": 12, "608M": 18, "1.34B": 24, "2.52B": 30}
_VOCAB_SIZE, _BATCH_TOKENS, _TOKENS_PER_PARAMETER = 32_000, 131_072, 20


def ladder_compute(rung: str) -> float:
    """FLOPs of a rung's run in the paper's notation: 6 times parameters without embeddings times tokens."""
    if rung not in LAYERS:
        raise ValueError(f"rung must be one of {', '.join(LAYERS)}; got {rung!r}.")
    num_layers = LAYERS[rung]
    width = 64 * (4 * num_layers // 3)
    blocks = 12 * width**2 * num_layers
    total = blocks + 2 * _VOCAB_SIZE * width
    tokens = round(_TOKENS_PER_PARAMETER * total / _BATCH_TOKENS) * _BATCH_TOKENS
    return float(6 * blocks * tokens)
