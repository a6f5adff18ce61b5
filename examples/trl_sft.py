"""TRL's SFTTrainer learns the frequencies of a converted model: a small random Llama on lines of this file.

Needs TRL (tried with 1.16.0 on the CPU). In your work model, tokenizer and rows are yours.
"""

import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import lerope
from lerope.interop.trainer import LeropeCallback, log_scales


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and one for the end of a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<end>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def main(steps: int = 5) -> None:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = lerope.convert(AutoModelForCausalLM.from_config(config))
    rows = Dataset.from_list([{"text": line} for line in Path(__file__).read_text().splitlines() if line])
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(
            folder,
            max_steps=steps,
            max_length=128,
            learning_rate=3e-3,
            bf16=False,  # on a GPU leave it out
            use_cpu=True,
            gradient_checkpointing=True,
            save_strategy="no",
            report_to="none",
        )
        trainer = SFTTrainer(
            model=model, args=args, train_dataset=rows, processing_class=tokenizer, callbacks=[LeropeCallback()]
        )
        trainer.train()
        trainer.save_model(folder)
        again = lerope.convert(AutoModelForCausalLM.from_pretrained(folder))  # what was saved learns on
    scales = torch.tensor(log_scales(again)["shared"])
    print(f"loss {trainer.state.log_history[-1]['train_loss']:.3f}, log-scales {scales.numpy().round(4)}")


if __name__ == "__main__":
    main()
