"""The paper's points, for tests."""

from lerope.scaling.paper import RUNGS, losses

COMPUTE, LOSS = losses()

__all__ = ["COMPUTE", "LOSS", "RUNGS"]
