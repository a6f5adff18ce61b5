"""What a run writes: tokens drawn one by one, each read once, also beyond the train length."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lerope.core.checks import check_choice, check_count, check_number
from lerope.core.recipe import Precision
from lerope.core.run import finished_run
from lerope.evaluate.documents import run_tokenizer
from lerope.model.cache import Cache
from lerope.model.saved import load_model
from lerope.model.transformer import Transformer
from lerope.rotary.encodings import Encoding
from lerope.rotary.extension import Method, extend, scale_by_position
from lerope.train.parallel import start_ranks

# Positions are exact in float32 up to here.
_MOST_TOKENS = 1 << 24


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """How to write."""

    tokens: int = 200
    """How many to write at most; a run may end its document before."""
    temperature: float = 0.8
    """Below 1, likely tokens become likelier; 0 always takes the likeliest."""
    top_p: float = 0.95
    """Draw only from the likeliest tokens that together have this probability; 1 draws from all."""
    seed: int = 42
    """Another one gives another text."""
    extend: Method = "none"
    """How frequencies adapt where prompt and tokens go beyond the train length."""
    extend_temperature: float = 0.1
    """For yarn, slow_bands, dominant_band and logits: logits grow with (this ln(length / train length) + 1)^2."""
    dominant_band: int | None = None
    """The band that dominant_band slows; found from the run's own attention unless given."""
    precision: Precision = "float32"
    """float32 is the reference; bf16 takes half the memory and rounds."""
    device: str = "auto"
    """cuda, cuda:1 or cpu; auto takes a GPU if there is one."""

    def __post_init__(self) -> None:
        check_count("tokens", self.tokens)
        for field in ("temperature", "extend_temperature"):
            if check_number(field, getattr(self, field)) < 0:
                raise ValueError(f"{field} must be 0 or more; got {getattr(self, field)!r}.")
        if not 0 < check_number("top_p", self.top_p) <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1; got {self.top_p!r}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed must be a whole number in [0, 2^63); got {self.seed!r}.")
        check_choice("extend", self.extend, Method)
        check_choice("precision", self.precision, Precision)
        if self.dominant_band is not None and self.extend != "dominant_band":
            raise ValueError(f"dominant_band needs --extend dominant_band; got extend {self.extend!r}.")


def choose(logits: Tensor, temperature: float, top_p: float, draw: float) -> int:
    """A token by its logits, (vocab_size,): the one that `draw`, from 0 to 1, falls on.

    Tokens lie side by side, the likeliest first, each as wide as its probability; those beyond `top_p` are cut off and
    the rest is stretched to 1.
    """
    if temperature == 0:
        return int(logits.argmax())
    values = logits.double().numpy()
    with np.errstate(over="ignore"):  # at temperatures next to 0, all but the likeliest become 0
        weights = np.exp((values - values.max()) / temperature)
    order = np.argsort(-weights)
    ends = weights[order].cumsum()
    ends = ends[: np.searchsorted(ends, top_p * ends[-1]) + 1]
    place = np.searchsorted(ends, draw * ends[-1], side="right")
    return int(order[min(place, len(ends) - 1)])


class Writer:
    """A finished run that continues texts.

    Args:
        path: the run's directory.
    """

    def __init__(self, path: Path, request: GenerateRequest) -> None:
        self.run, self.request = finished_run(path), request
        self._device = start_ranks(request.device).device
        self.model = ready(load_model(self.run.path).to(self._device), request.precision)
        self.tokenizer = run_tokenizer(self.run)
        self._encoding = self.model.encoding

    @property
    def train_length(self) -> int:
        """Tokens of a row in training."""
        return self.run.recipe.row_length

    def passage(self, prompt: str) -> "Passage":
        """Begins to continue a prompt; nothing is computed before the passage is iterated."""
        if not prompt:
            raise ValueError("prompt must hold some text to continue; got an empty one.")
        (tokens,) = self.tokenizer.encode([prompt])
        start = [int(token) for token in tokens[:-1]]  # without the end of a document
        if len(start) + self.request.tokens > _MOST_TOKENS:
            most = _MOST_TOKENS - len(start)
            raise ValueError(
                f"tokens must be at most {most:,} after {len(start):,} of the prompt: positions are exact up to "
                f"{_MOST_TOKENS:,}; got {self.request.tokens:,}."
            )
        return Passage(self, prompt, start)

    def tokens(self, start: list[int]) -> Iterator[int]:
        """The tokens after these, the end of the document not among them."""
        request, draws = self.request, torch.Generator().manual_seed(self.request.seed)
        encoding, cache = self._stretched(len(start) + request.tokens)
        new = start
        for _ in range(request.tokens):
            self.model.encoding = encoding  # passages of one writer may take turns
            logits = read(self.model, torch.tensor([new], device=self._device), cache)
            if not bool(logits.isfinite().all()):
                raise ValueError(f"{self.run.path} gives logits that are no numbers; its training diverged.")
            draw = torch.rand((), generator=draws, dtype=torch.float64).item()
            token = choose(logits, request.temperature, request.top_p, draw)
            if token == self.tokenizer.eos:
                return
            yield token
            new = [token]

    def _stretched(self, length: int) -> tuple[Encoding, Cache]:
        """An encoding for a text of this length, and an empty cache."""
        request = self.request
        extension = extend(
            self._encoding.artifact().tensor(),
            train_length=self.train_length,
            length=length,
            method=request.extend,
            temperature=request.extend_temperature,
            dominant_band=request.dominant_band,
        )
        encoding = self._encoding.freeze(extension.frequencies).to(self._device)
        scale: Tensor | float = extension.logit_scale
        if request.extend == "logits":
            positions = torch.arange(length, device=self._device)
            scale = scale_by_position(positions, self.train_length, request.extend_temperature)
        return encoding, Cache(self.model.config.num_layers, scale)


class Passage:
    """A text while a run writes it: iterate over its pieces, each of whole characters."""

    def __init__(self, writer: Writer, prompt: str, start: list[int]) -> None:
        self.writer, self.prompt = writer, prompt
        self.text = ""
        """What the run has written so far."""
        self.num_prompt_tokens, self.num_tokens = len(start), 0
        self.is_ended = False
        """Whether the run has ended the document itself."""
        self._seconds: list[float] = []
        self._tokens = writer.tokens(start)
        self._stream = writer.tokenizer.stream()

    def __iter__(self) -> Iterator[str]:
        while True:
            begun = time.perf_counter()
            token = next(self._tokens, None)
            if token is None:
                break
            self._seconds.append(time.perf_counter() - begun)
            self.num_tokens += 1
            yield self._added(self._stream.add(token))
        self.is_ended = self.num_tokens < self.writer.request.tokens
        yield self._added(self._stream.end())

    def _added(self, piece: str) -> str:
        self.text += piece
        return piece

    @property
    def length(self) -> int:
        """Tokens so far, those of the prompt included."""
        return self.num_prompt_tokens + self.num_tokens

    @property
    def is_beyond(self) -> bool:
        """Whether the text is longer than any row that the run was trained on."""
        return self.length > self.writer.train_length

    @property
    def tokens_per_second(self) -> float | None:
        """How fast tokens after the first come; that one waits for the prompt to be read. None before there are two."""
        later = self._seconds[1:]
        return len(later) / sum(later) if later else None

    def as_dict(self) -> dict[str, Any]:
        """All of it for JSON."""
        rate = self.tokens_per_second
        return {
            "run": self.writer.run.name,
            "prompt": self.prompt,
            "text": self.text,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_tokens": self.num_tokens,
            "is_ended": self.is_ended,
            "train_length": self.writer.train_length,
            "extend": self.writer.request.extend,
            "temperature": self.writer.request.temperature,
            "top_p": self.writer.request.top_p,
            "seed": self.writer.request.seed,
            "precision": self.writer.request.precision,
            "tokens_per_second": None if rate is None else round(rate, 2),
        }


def ready(model: Transformer, precision: Precision) -> Transformer:
    """A model whose weights have the precision and the order in memory to read single tokens fast."""
    for module in model.modules():
        if precision == "bf16" and isinstance(module, nn.Linear | nn.Embedding):
            module.to(torch.bfloat16)
        if isinstance(module, nn.Linear) and module.weight.device.type == "cpu":
            # The same matrix, column by column: times a single vector, that is up to twice as fast.
            module.weight = nn.Parameter(module.weight.detach().t().contiguous().t())
    return model.eval()


@torch.inference_mode()
def read(model: Transformer, tokens: Tensor, cache: Cache) -> Tensor:
    """Reads (1, new) tokens and gives the logits of the next one, (vocab_size,) in float32 on the CPU."""
    hidden = model.hidden(tokens, cache=cache)
    logits: Tensor = model.head(hidden[0, -1])
    return logits.float().cpu()
