"""Simulated studies whose effect is known."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Simulated:
    """One study, and what each interval is about."""

    differences: np.ndarray
    tokens: np.ndarray
    all_seeds_these_documents: float
    these_seeds_all_documents: float


def simulate(
    generator: np.random.Generator,
    effect: float,
    num_seeds: int,
    num_documents: int = 4000,
    seed_deviation: float = 0.001,
    document_deviation: float = 0.01,
    pair_deviation: float = 0.02,
    token_deviation: float = 0.4,
    length_deviation: float = 1.0,
) -> Simulated:
    """Differences of two methods' losses, summed over documents.

    Lengths are log-normal, about 400 tokens; with a deviation of 2 a few are most of the text, as where books lie among
    letters. A seed moves all documents alike by 0.001 nats per token (the paper's
    paired deviations are 0.0004 to 0.0019). A document favours one method by 0.01 nats per token with every seed, short
    ones by more, and by 0.02 with one seed alone, because two trainings part ways; each token differs by 0.4 besides.
    """
    tokens = np.ceil(generator.lognormal(5.5, length_deviation, num_documents))
    seeds = seed_deviation * generator.standard_normal(num_seeds)
    documents = document_deviation * generator.standard_normal(num_documents) * (tokens / 400) ** -0.2
    pairs = pair_deviation * generator.standard_normal((num_seeds, num_documents)) * tokens
    noise = token_deviation * generator.standard_normal((num_seeds, num_documents)) * np.sqrt(tokens)
    differences = (effect + seeds[:, None] + documents) * tokens + pairs + noise
    return Simulated(
        differences=differences,
        tokens=tokens,
        all_seeds_these_documents=effect + float((documents * tokens).sum() / tokens.sum()),
        these_seeds_all_documents=effect + float(seeds.mean()),
    )
