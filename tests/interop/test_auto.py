"""Ladder models through the Auto classes: the same logits and tokens, generation, training, a harness."""

import json

import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import lerope
from lerope.core.ladder import ModelConfig
from lerope.data.tokenizer import Tokenizer, train_tokenizer
from lerope.interop.auto import LeropeConfig, LeropeForCausalLM, LeropeTokenizer, register
from lerope.model.init import init_weights
from lerope.model.saved import load_model, save_model
from lerope.model.transformer import Transformer

TEXTS = [
    "def f(x):\n    return x + 1\n",
    "Seven green bottles, hanging on the wall.",
    "  leading and   many spaces  ",
    "\ttabs\n\n\nand lines\r\n",
    "digits 1234567890, na\u00efve caf\u00e9, \u65e5\u672c\u8a9e, \U0001f600",
    "x",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's directory with a model whose frequencies have moved."""
    folder = tmp_path_factory.mktemp("run")
    train_tokenizer([text * 3 for text in TEXTS[:4]] * 20, 340, folder / "tokenizer.model")
    config = ModelConfig(num_layers=2, num_heads=2, head_dim=16, vocab_size=340)
    model = Transformer(config, lerope.LeRoPE(16))
    init_weights(model, seed=3)
    with torch.no_grad():
        model.encoding.alpha.copy_(torch.linspace(-1, 1, 8))
        for block in model.blocks:
            block.attention.qkv.weight.mul_(4)
    save_model(folder / "model", config, model.state_dict(), model.encoding.artifact(64), folder / "tokenizer.model")
    return folder


@pytest.fixture(scope="module")
def loaded(run):
    return AutoModelForCausalLM.from_pretrained(run / "model")


@pytest.fixture(scope="module")
def tokenizer(run):
    return AutoTokenizer.from_pretrained(run / "model")


def some_tokens(rows=2, length=20, seed=0):
    return torch.randint(3, 340, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_the_same_logits(run, loaded):
    own, x = load_model(run), some_tokens()
    assert type(loaded) is LeropeForCausalLM
    with torch.no_grad():
        torch.testing.assert_close(loaded(x).logits, own(x), rtol=0, atol=1e-6)
        plain = load_model(run).encoding.freeze(lerope.RoPE(16).frequencies())
        own.encoding = plain
        assert (loaded(x).logits - own(x)).abs().max() > 1e-3  # the learned frequencies matter


def test_loss_is_the_mean_over_next_tokens(loaded):
    x = some_tokens()
    labels = x.clone()
    labels[0, :10] = -100
    with torch.no_grad():
        out = loaded(x, labels=labels)
    expected = functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    torch.testing.assert_close(out.loss, expected)


def test_the_model_without_its_head(loaded):
    """What TRL calls, to apply the head in chunks of its own."""
    x = some_tokens()
    with torch.no_grad():
        hidden = loaded.base_model(input_ids=x, attention_mask=torch.ones_like(x), use_cache=False).last_hidden_state
        assert torch.equal(loaded.get_output_embeddings()(hidden), loaded(x).logits)


def test_the_same_tokens(run, tokenizer):
    own = Tokenizer(run / "tokenizer.model")
    assert type(tokenizer) is LeropeTokenizer
    for text in TEXTS:
        *expected, end = own.encode([text])[0].tolist()
        assert tokenizer(text)["input_ids"] == expected
        assert end == tokenizer.eos_token_id
        assert tokenizer.decode(expected, skip_special_tokens=True) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (own.bos, own.eos) == (1, 2)


def test_tokenizer_saves_and_loads(run, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((run / "model" / "config.json").read_text())
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert again(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_generation_is_greedy_step_by_step(run, loaded):
    own, x = load_model(run), some_tokens(1, 5)
    expected = x
    with torch.no_grad():
        for _ in range(8):
            expected = torch.cat((expected, own(expected)[:, -1:].argmax(-1)), dim=1)
    found = loaded.generate(x, max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert torch.equal(found, expected)
    asked = loaded.generate(x, max_new_tokens=8, do_sample=False, eos_token_id=None, use_cache=True)
    assert torch.equal(asked, expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(loaded, side):
    x = some_tokens(1, 12)
    pad = torch.zeros(1, 5, dtype=torch.long)
    parts = (pad, x) if side == "left" else (x, pad)
    mask = torch.cat([(part > 0).long() for part in parts], dim=1)
    with torch.no_grad():
        alone = loaded(x).logits
        padded = loaded(torch.cat(parts, dim=1), attention_mask=mask).logits[mask.bool()]
    torch.testing.assert_close(padded, alone[0], rtol=1e-4, atol=1e-5)


def test_positions_that_start_again_are_documents(loaded):
    x = some_tokens(2, 10)
    positions = torch.arange(10).repeat(2)[None]
    with torch.no_grad():
        packed = loaded(x.reshape(1, 20), position_ids=positions).logits
        torch.testing.assert_close(packed.view(2, 10, -1), loaded(x).logits, rtol=1e-4, atol=1e-5)


def test_padding_and_documents_in_one_row(loaded):
    x = some_tokens(1, 12)
    mask, positions = torch.ones_like(x), torch.arange(6).repeat(2)[None]
    mask[:, :2] = 0
    with torch.no_grad():
        found = loaded(x, attention_mask=mask, position_ids=positions).logits
        for document in (slice(2, 6), slice(6, 12)):
            torch.testing.assert_close(found[:, document], loaded(x[:, document]).logits, rtol=1e-4, atol=1e-5)


def test_a_mask_of_pairs_is_refused(loaded):
    with pytest.raises(ValueError, match=r"attention_mask must be \(rows, length\).*got shape \(1, 1, 4, 4\)"):
        loaded(some_tokens(1, 4), attention_mask=torch.ones(1, 1, 4, 4).tril())


def test_training_goes_on_and_is_saved_as_a_run_is(run, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(run / "model", encoding="lerope").train()
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(lerope.param_groups(model, lr=1e-2, weight_decay=0.1))
    before = model.transformer.encoding.alpha.detach().clone()
    torch.testing.assert_close(before, torch.linspace(-1, 1, 8))
    x = some_tokens()
    model(x, labels=x).loss.backward()
    optimizer.step()
    assert (model.transformer.encoding.alpha != before).all()
    (tmp_path / "note.txt").write_text("stays")
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "frequencies.json",
        "model.safetensors",
        "note.txt",
        "tokenizer.model",
    ]
    model.eval()
    for again in (load_model(tmp_path, "lerope"), AutoModelForCausalLM.from_pretrained(tmp_path, encoding="lerope")):
        encoding = getattr(again, "transformer", again).encoding
        assert torch.equal(encoding.alpha, model.transformer.encoding.alpha)
        with torch.no_grad():
            out = again(x)
            assert torch.equal(getattr(out, "logits", out), model(x).logits)


def test_weights_load_under_their_names_on_disk(run, loaded):
    from safetensors.torch import load_file

    weights = load_file(run / "model" / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(run / "model", encoding="lerope")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert not any(model.load_state_dict(weights))
    with torch.no_grad():
        torch.testing.assert_close(model(some_tokens()).logits, loaded(some_tokens()).logits)


def test_dtype_and_run_directory(run):
    model = LeropeForCausalLM.from_pretrained(run, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert model.transformer.encoding.theta.dtype == torch.float32
    with torch.no_grad():
        assert model(some_tokens()).logits.dtype == torch.bfloat16


def test_trainer_takes_it(run, tmp_path):
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    model = AutoModelForCausalLM.from_pretrained(run / "model", encoding="lerope")
    args = TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, save_steps=1, report_to="none", use_cpu=True, disable_tqdm=True
    )
    rows = [{"input_ids": row, "labels": row} for row in some_tokens(16)]
    Trainer(model=model, args=args, train_dataset=rows).train()
    again = AutoModelForCausalLM.from_pretrained(run / "model", encoding="lerope")
    Trainer(model=again, args=args, train_dataset=rows).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    for (name, one), other in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_lm_evaluation_harness_scores_a_run(run, loaded, tokenizer, tmp_path):
    """A task of two choices from a local file, against log-likelihoods computed here."""
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    from lm_eval.tasks import TaskManager

    questions = [{"text": text[:8], "choices": [text[8:14], "zzzzzz"], "answer": 0} for text in TEXTS[:3]]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    (tmp_path / "toy.yaml").write_text(
        "task: toy\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: "
        f"{tmp_path / 'questions.jsonl'}\ntest_split: test\noutput_type: multiple_choice\n"
        'doc_to_text: "{{text}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: answer\ntarget_delimiter: ""\n'
        "metric_list:\n  - metric: acc\n"
    )
    results = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(run / "model"), "dtype": "float32"},
        tasks=["toy"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        device="cpu",
        batch_size=2,
        bootstrap_iters=0,
        log_samples=True,
    )
    for sample, question in zip(results["samples"]["toy"], questions, strict=True):
        for response, choice in zip(sample["filtered_resps"], question["choices"], strict=True):
            start = tokenizer(question["text"])["input_ids"]  # from BOS, as documents are in training
            ids = start + tokenizer(question["text"] + choice)["input_ids"][len(start) :]
            with torch.no_grad():
                scores = loaded(torch.tensor([ids])).logits[0].log_softmax(-1)
            expected = sum(scores[at - 1, ids[at]].item() for at in range(len(start), len(ids)))
            assert float(response[0]) == pytest.approx(expected, abs=1e-3)
    assert 0 <= results["results"]["toy"]["acc,none"] <= 1


def test_config_speaks_both_languages(run):
    config = AutoConfig.from_pretrained(run / "model")
    assert type(config) is LeropeConfig
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (32, 2, 2)
    assert config.max_position_embeddings == 64
    register()  # a second time does no harm


def test_bad_input(run, tmp_path):
    with pytest.raises(ValueError, match="a ladder model comes from a run's folder"):
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(run / "model"))
    with pytest.raises(ValueError, match="holds no model"):
        LeropeForCausalLM.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((run / "model" / "config.json").read_text())
    with pytest.raises(ValueError, match=r"tokenizer.model cannot be read"):
        AutoTokenizer.from_pretrained(tmp_path)
