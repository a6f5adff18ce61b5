"""Running out of memory, said in a sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def enough_memory(otherwise: str) -> Iterator[None]:
    """Raises a ValueError that says `otherwise` where memory runs out, of a GPU or of the machine."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
        raise ValueError(otherwise) from None
