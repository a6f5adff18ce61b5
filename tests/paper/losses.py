"""The paper's points, for tests."""

from lerope.paper.numbers import RUNGS
from lerope.paper.recomputed import losses

COMPUTE, LOSS = losses()

__all__ = ["COMPUTE", "LOSS", "RUNGS"]
