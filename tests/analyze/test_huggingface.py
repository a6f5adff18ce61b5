"""Hugging Face models of random weights in a folder, against plain loops and models changed by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from lerope.analyze.ablation import leave_one_out  # noqa: E402
from lerope.analyze.bands import measure, measure_bands  # noqa: E402
from lerope.analyze.huggingface import HuggingFaceModel  # noqa: E402
from lerope.analyze.phasors import measure_phasors  # noqa: E402
from lerope.analyze.subjects import Removal  # noqa: E402
from lerope.analyze.targets import open_target  # noqa: E402
from lerope.analyze.wavelengths import describe_frequencies  # noqa: E402
from lerope.evaluate.perplexity import EvalRequest  # noqa: E402

CPU = torch.device("cpu")
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 60,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}
YARN = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    }
}
KINDS = {
    "llama": ("LlamaConfig", {}),
    "llama_yarn": ("LlamaConfig", YARN),
    "qwen3": ("Qwen3Config", {}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
}
ROWS = [np.random.default_rng(size).integers(3, 60, size) for size in (11, 17)]


def write(folder: Path, kind: str) -> Path:
    name, changes = KINDS[kind]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**{**SHAPE, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():  # Hugging Face's small initial weights would hide what attention does
            if parameter.ndim > 1:
                parameter.mul_(10)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    return write(tmp_path_factory.mktemp(request.param), request.param)


def projections(model, row: np.ndarray) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Queries and keys before rotation, (heads, length, 8), by hooks on what comes right before it."""
    seen: list[dict[str, torch.Tensor]] = []
    hooks = []
    for layer in model.model.layers:
        kept: dict[str, torch.Tensor] = {}
        seen.append(kept)
        for name in ("q", "k"):
            module = getattr(layer.self_attn, f"{name}_norm", None) or getattr(layer.self_attn, f"{name}_proj")

            def keep(module, args, out, kept=kept, name=name):
                kept[name] = out.view(len(row), -1, 8).transpose(0, 1).double()

            hooks.append(module.register_forward_hook(keep))
    with torch.no_grad():
        model(input_ids=torch.from_numpy(row)[None])
    for hook in hooks:
        hook.remove()
    return [(kept["q"], kept["k"]) for kept in seen]


def test_contributions_and_norms_equal_a_loop(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    emb = model.model.rotary_emb
    theta, factor = emb.inv_freq.double().numpy(), float(emb.attention_scaling)
    sums, pairs, norms, bounds = np.zeros((2, 4, 17)), np.zeros(17), np.zeros((2, 2, 4)), np.zeros((2, 4, 4))
    for row in ROWS:
        for layer, (q, k) in enumerate(projections(model, row)):
            for head in range(4):
                key = k[head // 2]
                for m in range(4):
                    for s in range(len(row)):
                        for t in range(s + 1):
                            a = complex(q[head, s, m], q[head, s, m + 4])
                            b = complex(key[t, m], key[t, m + 4])
                            turned = a * b.conjugate() * np.exp(1j * (s - t) * theta[m])
                            sums[layer, m, s - t] += turned.real * factor**2 / np.sqrt(8)
            for head in range(2):
                norms[layer, head] += torch.hypot(k[head, :, :4], k[head, :, 4:]).mean(0).numpy() / 2
            for head in range(4):
                q_sizes = torch.hypot(q[head, :, :4], q[head, :, 4:]).mean(0)
                k_sizes = torch.hypot(k[head // 2, :, :4], k[head // 2, :, 4:]).mean(0)
                bounds[layer, head] += (q_sizes * k_sizes).numpy() * factor**2 / np.sqrt(8) / 2
        pairs[: len(row)] += 4 * np.arange(len(row), 0, -1)
    got = measure(HuggingFaceModel(folder), ROWS, "test")
    # The model's own cosines and sines are float32.
    np.testing.assert_allclose(got.contributions, sums / pairs, atol=1e-6 * abs(sums / pairs).max())
    np.testing.assert_allclose(got.key_norms, norms, rtol=1e-6)
    np.testing.assert_allclose(got.bounds, bounds, rtol=1e-6)


def test_frequencies_are_those_of_the_model(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    got = HuggingFaceModel(folder).frequencies
    assert got.shape == (2, 1, 4)
    np.testing.assert_allclose(got[1, 0], model.model.rotary_emb.inv_freq, rtol=1e-6)


def hand_made(folder: Path, removal: Removal | None):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        if removal is not None and removal.meaning == "frequency":
            model.model.rotary_emb.inv_freq[removal.bands[0]] = 0.0
        elif removal is not None:
            for layer in model.model.layers:
                norm = getattr(layer.self_attn, "q_norm", None)
                if norm is not None:
                    norm.weight[[removal.bands[0], removal.bands[0] + 4]] = 0.0
                else:
                    layer.self_attn.q_proj.weight.view(4, 8, 32)[:, [removal.bands[0], removal.bands[0] + 4]] = 0.0
    return model


@pytest.mark.parametrize("meaning", ["contribution", "frequency"])
def test_leave_one_out_equals_models_changed_by_hand(folder, meaning):
    subject = HuggingFaceModel(folder)
    changes = []
    for removal in (None, *(Removal((band,), meaning) for band in range(4))):
        got = subject.losses(ROWS, removal)
        model = hand_made(folder, removal)
        for row, losses in zip(ROWS, got, strict=True):
            ids = torch.from_numpy(row)
            with torch.no_grad():
                scores = model(input_ids=ids[None, :-1]).logits[0].log_softmax(-1)
            want = -scores.gather(1, ids[1:, None])[:, 0]
            torch.testing.assert_close(losses[: len(row) - 1], want, atol=1e-4, rtol=1e-4)
            assert not losses[len(row) - 1 :].any()
        changes.append(float(got.sum()))
    assert len({round(change, 4) for change in changes}) == 5


def test_nothing_stays_changed(folder):
    subject = HuggingFaceModel(folder)
    before = subject.losses(ROWS)
    subject.losses(ROWS, Removal((0,), "contribution"))
    measure(subject, ROWS, "test")
    assert torch.equal(subject.losses(ROWS), before)
    module = __import__(type(subject.model).__module__, fromlist=["apply_rotary_pos_emb"])
    assert module.apply_rotary_pos_emb.__module__ == module.__name__


def with_tokenizer(folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<s>": 1, "</s>": 2, "<unk>": 0, **{chr(97 + n): n + 3 for n in range(26)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>").save_pretrained(folder)
    return folder


def test_a_folder_is_a_target_like_a_run(tmp_path):
    folder = with_tokenizer(write(tmp_path / "m", "llama"))
    text = tmp_path / "text.txt"
    text.write_text(" ".join(np.random.default_rng(0).choice(list("abcdefgh"), 150)))
    target = open_target(folder, EvalRequest(device="cpu", text=(str(text),), length=20))
    assert target.train_length == 64
    assert np.asarray(target.documents.source.lengths).tolist() == [21] * 7 + [10]
    bands = measure_bands(target, 4, CPU)
    assert bands.settings["num_rows"] == 4
    assert bands.run["model_type"] == "llama"
    assert len(bands.layers) == 8
    ablation = leave_one_out(target, None, CPU)
    assert ablation.num_tokens == 149
    whole = HuggingFaceModel(folder).losses([target.documents.source.document(n) for n in range(8)])
    assert ablation.loss == pytest.approx(float(whole.sum()) / 149, rel=1e-6)
    assert json.loads((folder / "results" / "ablation.json").read_text())["removals"] == ablation.removals
    for part in (lambda: describe_frequencies(target), lambda: measure_phasors(target, 1, None, CPU)):
        with pytest.raises(ValueError, match="is not a run"):
            part()


def test_the_embedded_text_is_there_without_any(tmp_path):
    target = open_target(with_tokenizer(write(tmp_path / "m", "qwen3")), EvalRequest(device="cpu"))
    assert target.length == 64
    assert len(target.documents.source.lengths) > 64
    assert target.documents.name == "python documentation"


def test_other_pairs_are_refused(tmp_path):
    shape = {**SHAPE, "num_key_value_heads": 4}
    config = transformers.CohereConfig(**shape)  # turns neighbouring dimensions
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "m")
    with pytest.raises(ValueError, match="half-split pairs"):
        HuggingFaceModel(tmp_path / "m")


def test_heads_that_turn_in_part_are_refused(tmp_path):
    shape = {name: value for name, value in SHAPE.items() if name not in ("num_key_value_heads", "head_dim")}
    turned = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    config = transformers.GPTNeoXConfig(**{**shape, "rope_parameters": turned})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "m")
    with pytest.raises(ValueError, match="does not turn whole heads"):
        HuggingFaceModel(tmp_path / "m")


def test_a_corpus_is_refused(tmp_path):
    folder = write(tmp_path / "m", "llama")
    with pytest.raises(ValueError, match="data must be left out"):
        open_target(folder, EvalRequest(device="cpu", data=tmp_path))


def test_models_without_rope_are_refused(tmp_path):
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=60, n_positions=64)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "m")
    with pytest.raises(ValueError, match="does not turn queries and keys by apply_rotary_pos_emb"):
        HuggingFaceModel(tmp_path / "m")


def test_a_damaged_folder_is_one_sentence(tmp_path):
    folder = write(tmp_path / "m", "llama")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be loaded by transformers"):
        HuggingFaceModel(folder)
