"""Hugging Face causal models with RoPE as subjects: what goes through their `apply_rotary_pos_emb` is seen and changed.

Frequencies and factors are read off the cosines and sines that the model itself computes, so every kind of RoPE
scaling is respected. The pairs must be half-split, as in Llama, Qwen3 and Mistral.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lerope.analyze.subjects import Removal, See, Turned, as_complex
from lerope.core.extras import install
from lerope.core.files import sha256_of
from lerope.data.shards import Tokens
from lerope.data.sources import read_texts, sources_in_words
from lerope.evaluate.documents import Documents, Texts
from lerope.evaluate.filler import load_filler
from lerope.evaluate.scorer import as_tensor

_ROTATE = "apply_rotary_pos_emb"
# Tokens whose losses are computed at a time: logits in float32 are large.
_LOSS_TOKENS = 256


def describe(folder: Path) -> tuple[dict[str, Any], int]:
    """What a result says about a model, and the length it was made for."""
    config = _load("AutoConfig", folder)
    parameters = getattr(config, "rope_parameters", None) or {}
    length = parameters.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int):
        raise ValueError(f"{folder}: config.json has no max_position_embeddings; name a causal model with RoPE.")
    weights = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.glob("*.safetensors"))
    ]
    label = {
        "name": folder.resolve().name,
        "model_type": config.model_type,
        "config": sha256_of(folder / "config.json"),
        "weights": hashlib.sha256(repr(weights).encode()).hexdigest(),
    }
    return label, length


def folder_documents(folder: Path, text: Sequence[str], length: int) -> Documents:
    """Rows of text in the folder's own tokens: what is named, or the embedded English text.

    Args:
        text: files, folders, python: or hf:NAME; the documentation in the standard library if empty.
        length: long documents are cut into stretches of this many inputs.
    """
    tokenizer = _load("AutoTokenizer", folder)
    if text:
        texts, name = list(read_texts(text)), sources_in_words(text)
    else:
        filler = load_filler()
        texts, name = [" ".join(filler.sentences)], filler.name
    if not texts:
        raise ValueError(f"{name} holds no text; name sources with text.")
    documents: list[Tokens] = []
    digest = hashlib.sha256()
    for each in texts:
        tokens = np.array(tokenizer(each)["input_ids"], np.int64)
        digest.update(len(tokens).to_bytes(8, "little") + tokens.astype("<u4").tobytes())
        documents += [tokens[start : start + length + 1] for start in range(0, max(len(tokens) - 1, 1), length)]
    return Documents(name, Texts(documents), digest.hexdigest(), 0, False)


class HuggingFaceModel:
    """A model from a local folder, in float32.

    Args:
        folder: what `save_pretrained` wrote, or a download.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        self.folder, self.device = folder, torch.device(device)
        self.model: Any = _load("AutoModelForCausalLM", folder, dtype=torch.float32).to(device).eval()
        self._attentions = [
            module
            for module in self.model.modules()
            if type(module).__name__.endswith("Attention") and isinstance(getattr(module, "layer_idx", None), int)
        ]
        files = {type(module).__module__ for module in self._attentions}
        if len(files) != 1 or not hasattr(sys.modules[next(iter(files))], _ROTATE):
            raise self._unfit(f"its attention does not turn queries and keys by {_ROTATE}")
        self._module = sys.modules[files.pop()]
        config = self.model.config
        self.num_layers, self.num_heads = len(self._attentions), int(config.num_attention_heads)
        self.num_key_heads = int(getattr(config, "num_key_value_heads", None) or self.num_heads)
        self._probe()

    def watch(self, row: Tokens, see: See) -> None:
        seen: list[nn.Module] = []

        def show(layer: nn.Module, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
            q_bands, k_bands = (as_complex(x[0].double(), self.num_bands, "half").transpose(0, 1) for x in (q, k))
            table = torch.complex(cos[0].double(), sin[0].double())[:, None, : self.num_bands]
            factor = _logit_factor(layer, self.model.config)
            see(Turned(len(seen), q_bands, k_bands, table * table[0].conj() * factor))
            seen.append(layer)
            return q, k, cos, sin

        with self._rotating(show):
            self._run(row)

    def losses(self, rows: Sequence[Tokens], removal: Removal | None = None) -> Tensor:
        def change(layer: nn.Module, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
            if removal is None:
                return q, k, cos, sin
            both = [*removal.bands, *(band + self.num_bands for band in removal.bands)]
            if removal.meaning == "contribution":
                q = q.clone()
                q[..., both] = 0.0
            else:
                cos, sin = cos.clone(), sin.clone()
                cos[..., both], sin[..., both] = cos[:, :1, both], 0.0  # position 0 has the factor and no turn
            return q, k, cos, sin

        found = torch.zeros(len(rows), max(len(row) for row in rows) - 1, device=self.device)
        with self._rotating(change):
            for number, row in enumerate(rows):
                logits = self._run(row[:-1])
                targets = as_tensor(row[1:]).to(self.device)
                parts = zip(logits.split(_LOSS_TOKENS), targets.split(_LOSS_TOKENS), strict=True)
                losses = [functional.cross_entropy(some.float(), wanted, reduction="none") for some, wanted in parts]
                found[number, : len(row) - 1] = torch.cat(losses)
        return found

    @torch.no_grad()
    def _run(self, row: Tokens) -> Tensor:
        """Logits of one row, (length, vocabulary)."""
        tokens = as_tensor(row)[None].to(self.device)
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits[0]
        return logits

    def _probe(self) -> None:
        """Reads the frequencies off two tokens' turns, and makes sure that we know how layers turn."""
        angles: list[Tensor] = []

        def look(layer: nn.Module, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
            unfit = self._unfit("it does not turn whole heads in half-split pairs")
            num_bands = cos.shape[-1] // 2
            if q.shape[-1] != 2 * num_bands:
                raise unfit
            probe = torch.linspace(1.0, 2.0, q.numel(), device=q.device).view_as(q)
            first, second = probe[..., :num_bands], probe[..., num_bands:]
            c, s = (table[:, None, :, :num_bands] for table in (cos, sin))
            expected = torch.cat((first * c - second * s, second * c + first * s), -1)
            if not torch.allclose(self._original(probe, k, cos, sin)[0], expected):
                raise unfit
            turn = torch.complex(cos[0].double(), sin[0].double())[:, :num_bands]
            angles.append((turn[1] * turn[0].conj()).angle())
            return q, k, cos, sin

        with self._rotating(look):
            self._run(np.zeros(2, np.int64))
        if len(angles) != self.num_layers or len({len(each) for each in angles}) != 1:
            raise self._unfit(f"{len(angles)} of its {self.num_layers} layers turn queries and keys in the same bands")
        self.num_bands = len(angles[0])
        self.frequencies = torch.stack(angles)[:, None].cpu()

    @contextmanager
    def _rotating(self, change: Callable[..., tuple[Tensor, ...]]) -> Iterator[None]:
        """While entered, every layer's rotation gets what `change(layer, q, k, cos, sin)` returns."""
        now: list[nn.Module] = []
        self._original: Callable[..., Any] = getattr(self._module, _ROTATE)

        def turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **options: Any) -> Any:
            return self._original(*change(now[-1], q, k, cos, sin), *args, **options)

        hooks = [each.register_forward_pre_hook(lambda module, args: now.append(module)) for each in self._attentions]
        setattr(self._module, _ROTATE, turn)
        try:
            yield
        finally:
            setattr(self._module, _ROTATE, self._original)
            for hook in hooks:
                hook.remove()

    def _unfit(self, why: str) -> ValueError:
        return ValueError(f"{self.folder} cannot be analyzed: {why}; models of Llama, Qwen3 and Mistral shape can be.")


def _logit_factor(layer: Any, config: Any) -> float:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return float(getattr(layer, "scaling", head_dim**-0.5))


def _load(kind: str, folder: Path, **options: Any) -> Any:
    """A transformers object from a local folder; nothing is downloaded and none of its code is run."""
    try:
        import transformers
    except ImportError:
        raise ValueError(
            f"{folder} is a Hugging Face model, which needs transformers; run {install('hf', 'transformers')}."
        ) from None
    try:
        return getattr(transformers, kind).from_pretrained(folder, local_files_only=True, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{folder} cannot be loaded by transformers ({reason}); name a complete model.") from None
