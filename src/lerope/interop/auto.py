"""Ladder models for transformers: importing this module registers them with the Auto classes.

    import lerope.interop.auto
    model = AutoModelForCausalLM.from_pretrained("runs/52M-lerope-42/model")

So lm-evaluation-harness, TRL and Trainer work on the `model` folder of a run. There is no key-value cache: `generate`
computes the whole text again for every token, which is fine for evaluation; serve an exported model instead.
"""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from lerope.core.files import staged
from lerope.core.ladder import ModelConfig
from lerope.core.run import CONFIG, MODEL, TOKENIZER, is_run, read_run
from lerope.interop.tokenizer import Pieces, tokenizer_files
from lerope.model.saved import load_model, save_model
from lerope.model.transformer import Transformer
from lerope.rotary.encodings import FrozenRoPE

_PREFIX = "model.transformer."
_ANY_VOCABULARY = 1 << 40


class LeropeConfig(PreTrainedConfig):  # type: ignore[misc]
    """The config.json of a run's model."""

    model_type = "lerope"

    def __init__(self, **kwargs: Any) -> None:
        for field in fields(ModelConfig):
            setattr(self, field.name, kwargs.pop(field.name, None))
        self.train_length = kwargs.pop("train_length", None)
        super().__init__(**{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "use_cache": False, **kwargs})
        # What others call these things.
        self.num_hidden_layers, self.num_attention_heads = self.num_layers, self.num_heads
        self.max_position_embeddings = self.train_length
        known = self.num_heads is not None and self.head_dim is not None
        self.hidden_size = self.num_heads * self.head_dim if known else None


class LeropeModel(PreTrainedModel):  # type: ignore[misc]
    """A ladder model without its head, behind the interface of transformers."""

    config_class = LeropeConfig

    def __init__(self, config: LeropeConfig, transformer: Transformer) -> None:
        super().__init__(config)
        self.transformer = transformer

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None, **kwargs: Any
    ) -> BaseModelOutput:
        """What the head reads; arguments as in `LeropeForCausalLM`."""
        if attention_mask is not None and attention_mask.ndim != 2:
            raise ValueError(
                f"attention_mask must be (rows, length), 0 for padding; got shape {tuple(attention_mask.shape)}; the "
                "documents of a packed row are told by position_ids that restart at 0."
            )
        is_padded = attention_mask is not None and not bool(attention_mask.all())
        documents = None
        if position_ids is not None:
            position_ids = position_ids.expand(input_ids.shape)
            documents = 1 + (position_ids == 0).cumsum(-1)
        if is_padded:
            assert attention_mask is not None
            documents = attention_mask.long() if documents is None else documents * (attention_mask != 0)
            position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0) if position_ids is None else position_ids
        return BaseModelOutput(last_hidden_state=self.transformer.hidden(input_ids, position_ids, documents))

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.transformer.embedding

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Nothing: weights come from the run."""


class LeropeForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A ladder model behind the interface of transformers."""

    config_class = LeropeConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True

    def __init__(self, config: LeropeConfig, transformer: Transformer | None = None) -> None:
        if transformer is None:
            raise ValueError(
                "a ladder model comes from a run's folder: AutoModelForCausalLM.from_pretrained(run/model); train new "
                "ones with `lerope train`."
            )
        super().__init__(config)
        self.model = LeropeModel(config, transformer)
        self.generation_config.use_cache = False
        self.post_init()

    @property
    def transformer(self) -> Transformer:
        """The ladder's own model."""
        inner: Transformer = self.model.transformer
        return inner

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *args: Any, **kwargs: Any) -> "LeropeForCausalLM":
        """Loads a run's model.

        Args:
            folder: the `model` folder of a run, or the run's directory.
            kwargs: `encoding` as `lerope train` takes it, to continue learning frequencies, which are fixed otherwise;
                `dtype`; `device_map` as one device. Anything else transformers passes has no meaning for a run.
        """
        transformer = load_model(folder, kwargs.pop("encoding", None))
        path = Path(folder)
        path = path / "model" if (path / "model" / "config.json").is_file() else path
        config = kwargs.pop("config", None) or LeropeConfig.from_pretrained(path)
        if (path / TOKENIZER).is_file():
            pieces = Pieces.load(path / TOKENIZER, _ANY_VOCABULARY)
            config.bos_token_id, config.eos_token_id, config.pad_token_id = pieces.bos, pieces.eos, pieces.pad
        model = cls(config, transformer)
        config.name_or_path = model.name_or_path = str(path)
        dtype = kwargs.pop("dtype", None) or kwargs.pop("torch_dtype", None)
        if dtype not in (None, "auto"):
            model.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        device = kwargs.pop("device_map", None)
        device = next(iter(device.values())) if isinstance(device, dict) else device
        if device not in (None, "auto"):
            model.to(device)
        model.eval()
        return model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Logits, and with labels the mean loss of the next tokens.

        Args:
            input_ids: (rows, length).
            attention_mask: (rows, length), 0 for padding on either side.
            position_ids: (rows, length); where they restart at 0 a new document begins.
            labels: (rows, length), the tokens themselves; -100 does not count.
        """
        logits = self.transformer.head(self.model(input_ids, attention_mask, position_ids).last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **kwargs)
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Tensor | None]:
        """The whole text again: there is no cache."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.transformer.embedding

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.transformer.head

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """Computes activations again in the backward pass, never the reentrant way."""
        self.transformer.recompute = True

    def gradient_checkpointing_disable(self) -> None:
        """Keeps activations."""
        self.transformer.recompute = False

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Nothing: weights come from the run."""

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Writes the model as a run's `model` folder holds it; other files in the folder stay."""
        state = kwargs.get("state_dict") or self.state_dict()
        weights = {name.removeprefix(_PREFIX): value.detach().cpu() for name, value in state.items()}
        encoding = self.transformer.encoding
        if isinstance(encoding, FrozenRoPE):
            weights = {name: value for name, value in weights.items() if not name.startswith("encoding.")}
        artifact = encoding.artifact(self.config.train_length)
        if not (args[0] if args else kwargs.get("is_main_process", True)):
            return
        source = Path(self.config.name_or_path) / TOKENIZER
        with staged(Path(save_directory), last=CONFIG) as partial:
            save_model(partial, self.transformer.config, weights, artifact, source if source.is_file() else None)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Takes the names of weights with and without this class's prefix."""
        named = {_PREFIX + name.removeprefix(_PREFIX): value for name, value in state_dict.items()}
        return super().load_state_dict(named, *args, **kwargs)


class LeropeTokenizer(PreTrainedTokenizerFast):  # type: ignore[misc]
    """A run's SentencePiece tokenizer as a fast one, with BOS before every text and the same tokens."""

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Loads the tokenizer of a run's `model` folder, or one that `save_pretrained` wrote."""
        from tokenizers import Tokenizer

        path = Path(folder)
        if (path / "tokenizer.json").is_file():
            return super().from_pretrained(folder, *args, **kwargs)
        config = LeropeConfig.from_pretrained(path)
        if path.name == MODEL and is_run(path.parent):
            read_run(path.parent).check_model(TOKENIZER)
        pieces = Pieces.load(path / TOKENIZER, config.vocab_size)
        files = tokenizer_files(pieces, config.train_length)
        special = {"bos": pieces.bos, "eos": pieces.eos, "unk": pieces.unknown, "pad": pieces.pad}
        return cls(
            tokenizer_object=Tokenizer.from_str(files["tokenizer.json"]),
            clean_up_tokenization_spaces=False,
            model_max_length=config.train_length,
            padding_side="left",
            **{f"{name}_token": pieces.pieces[token] for name, token in special.items()},
        )


def register() -> None:
    """Makes AutoConfig, AutoModelForCausalLM and AutoTokenizer know ladder models; harmless when repeated."""
    AutoConfig.register(LeropeConfig.model_type, LeropeConfig, exist_ok=True)
    AutoModelForCausalLM.register(LeropeConfig, LeropeForCausalLM, exist_ok=True)
    AutoTokenizer.register(LeropeConfig, LeropeTokenizer, exist_ok=True)


register()
