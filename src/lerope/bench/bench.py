"""What every section of the benchmark gets: the device, the sizes, the stopwatch, the documents."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from lerope.bench.documents import Documents
from lerope.bench.timing import Stopwatch
from lerope.core.ladder import ModelConfig, rung


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much work each section does."""

    matmul: int
    """Rows and columns of the square matrices."""
    copy_bytes: int
    """Of the copied buffer: twice this is read and written."""
    row_length: int
    rotary_tokens: int
    rotary_heads: tuple[int, ...]
    batch_tokens: int
    large_batch_tokens: int
    """Tokens per step for rungs of width 1,024 or more."""
    corpus_tokens: int
    """Of the made-up corpus."""


FULL = Sizes(
    matmul=8192,
    copy_bytes=2 << 30,
    row_length=2048,
    rotary_tokens=131_072,
    rotary_heads=(8, 32),
    batch_tokens=131_072,
    large_batch_tokens=65_536,
    corpus_tokens=1 << 23,
)
QUICK = Sizes(
    matmul=256,
    copy_bytes=1 << 22,
    row_length=128,
    rotary_tokens=512,
    rotary_heads=(2, 4),
    batch_tokens=512,
    large_batch_tokens=256,
    corpus_tokens=1 << 15,
)


@dataclass(kw_only=True)
class Bench:
    """The state of one call of `lerope bench`."""

    device: torch.device
    sizes: Sizes
    rungs: tuple[str, ...]
    nanogpt: Path | None
    """A folder with nanoGPT's model.py."""
    watch: Stopwatch
    documents: Documents
    folder: Path
    """For temporary files."""
    matmul_rate: float | None = None
    """FLOP/s, once ceilings are measured."""
    copy_rate: float | None = None
    """Bytes read and written per second."""

    @property
    def dtype(self) -> torch.dtype:
        """What models compute in here."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def autocast(self) -> AbstractContextManager[Any]:
        """As in the trainer: bfloat16 on a GPU, float32 on a CPU."""
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal random numbers: zeros would take less power and hide errors."""
        return torch.randn(*shape, device=self.device, dtype=dtype or self.dtype)

    def batch_tokens(self, config: ModelConfig) -> int:
        """Tokens per step."""
        return self.sizes.large_batch_tokens if config.width >= 1024 else self.sizes.batch_tokens

    @cached_property
    def models(self) -> dict[str, ModelConfig]:
        """The rungs' models, with the vocabulary of the given data, if any."""
        return {name: self.documents.fitted(rung(name)) for name in self.rungs}


def share(work: float, seconds: float | None, rate: float | None) -> float | None:
    """The share of a ceiling that was reached: work per second, divided by the possible rate."""
    return None if seconds is None or rate is None else work / seconds / rate
