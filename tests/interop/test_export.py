"""lerope.export: what is written computes the same function in plain transformers, and bad input writes nothing."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import lerope
from lerope.data.tokenizer import Tokenizer
from lerope.evaluate.scorer import Stretch, StretchedRotation
from lerope.interop.huggingface import rotary_of
from lerope.model.saved import load_model
from lerope.model.transformer import Transformer
from tests.interop.toys import QUERIES, gpt2, make_other, shake
from tests.interop.toys import make as toy
from tests.interop.trained import (
    TRAIN_LENGTH,
    VOCAB_SIZE,
    odd_lerope,
    text,
    tokenizer_path,
    tokens,
    trained,
    untrained,
)

PLAIN = """
import json, sys
import numpy as np, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

for folder, prompt, num_tokens in json.loads(sys.argv[1]):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder)(prompt).input_ids[0] == model.config.bos_token_id
    ids = torch.from_numpy(np.load(folder + "/../ids.npy"))[None]
    with torch.no_grad():
        logits = model(ids).logits[0]
    how = {"do_sample": False, "max_new_tokens": num_tokens, "eos_token_id": -1, "use_cache": True}
    start = ids[:, :-num_tokens]
    done = model.generate(start, attention_mask=torch.ones_like(start), **how)
    np.savez(folder + "/../plain.npz", logits=logits.numpy(), done=done[0].numpy())
assert not any(name.startswith("lerope") for name in sys.modules)
"""


def relative_error(found, wanted) -> float:
    found, wanted = np.asarray(found), np.asarray(wanted)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@torch.no_grad()
def native_logits(model: Transformer, ids: torch.Tensor, length: int | None) -> torch.Tensor:
    """Our own evaluation: at a length beyond training's, with the frequencies and the temperature of YaRN."""
    if length is None:
        return model(ids[None])[0]
    positions, lengths = torch.arange(len(ids)), torch.tensor([length])
    stretch = Stretch(method="yarn", temperature=0.1)
    rotation = StretchedRotation(model, None, positions, lengths, TRAIN_LENGTH, stretch)
    return model.head(model.hidden(ids[None], rotations=[rotation] * model.config.num_layers))[0]


def test_plain_transformers_agrees_in_logits_and_in_256_tokens_with_a_cache(tmp_path):
    """The exported folder in a process that never imports lerope; with YaRN at twice the train length as well."""
    relu2, gelu = trained(), trained("gelu", 10)
    cases = {"plain": (relu2, None), "gelu": (gelu, None), "yarn": (relu2, 2 * TRAIN_LENGTH)}
    jobs = []
    for name, (run, length) in cases.items():
        out = tmp_path / name / "out"
        if name == "gelu":
            with pytest.warns(UserWarning, match="'gelu' runs only in transformers"):
                lerope.export(run, out, length=length)
        else:
            lerope.export(run, out, length=length)
        np.save(tmp_path / name / "ids.npy", tokens()[: length or 300].numpy())
        jobs.append((str(out), "def f(x):", 256))
    subprocess.run([sys.executable, "-c", PLAIN, json.dumps(jobs)], check=True, cwd=tmp_path)
    for name, (run, length) in cases.items():
        plain = np.load(tmp_path / name / "plain.npz")
        model, ids = load_model(run), tokens()[: length or 300]
        wanted = native_logits(model, ids, length)
        assert relative_error(plain["logits"], wanted) < 1e-5, name
        if length is not None:
            assert relative_error(native_logits(model, ids, None), wanted) > 1e-2  # the extension does something
        # Greedy: each token is the best one after all before it.
        done = torch.from_numpy(plain["done"])
        assert len(done) == len(ids)
        assert torch.equal(done[:-256], ids[:-256])
        assert torch.equal(native_logits(model, done, length)[-257:-1].argmax(-1), done[-256:]), name


@pytest.mark.parametrize(
    "encoding",
    [
        lerope.NoPE(64),
        lerope.RoPE(64, base=500_000.0),
        lerope.PRoPE(64, p=0.5),
        odd_lerope(layout="interleaved"),
        odd_lerope(rotary_dim=48),
        odd_lerope(rotary_dim=32, layout="interleaved"),
        odd_lerope(parametrization="linear"),  # negative frequencies among them
        lerope.FrozenRoPE(torch.linspace(0.2, 0.0, 32)),
    ],
    ids=lambda encoding: f"{type(encoding).__name__}-{encoding.layout}-{encoding.rotary_dim}",
)
def test_every_encoding_that_layers_share(encoding, tmp_path):
    model = untrained(encoding)
    ids = torch.randint(VOCAB_SIZE, (1, 200), generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="no tokenizer was given"):
        lerope.export(model, tmp_path / "out", train_length=200)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        wanted = model(ids)
        assert relative_error(plain(ids).logits, wanted) < 1e-5
        model.encoding = lerope.RoPE(64)
        assert relative_error(plain(ids).logits, model(ids)) > 1e-3  # so frequencies matter here


def test_both_key_styles_and_no_engine_scales_attention(tmp_path):
    lerope.export(trained(), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    saved = json.loads((trained() / "model" / "frequencies.json").read_text())
    factors = np.exp(-np.array(saved["log_scales"]))
    for key in ("rope_parameters", "rope_scaling"):
        assert config[key]["rope_type"] == "longrope"
        assert config[key]["short_factor"] == config[key]["long_factor"]
        np.testing.assert_allclose(config[key]["short_factor"], factors, rtol=1e-6)
        assert config[key]["original_max_position_embeddings"] == config["max_position_embeddings"] == TRAIN_LENGTH
        assert config[key]["attention_factor"] == config[key]["factor"] == 1.0
    assert config["rope_theta"] == 10_000
    assert config["head_dim"] == 64
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode == (tmp_path / "out" / "config.json").stat().st_mode


def test_bfloat16_keeps_the_activation_exact(tmp_path):
    lerope.export(trained(), tmp_path / "out", dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    x = torch.linspace(-4, 4, 101).bfloat16()
    assert torch.equal(model.model.layers[0].mlp.act_fn(x), x.relu().square())
    wide = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert torch.equal(wide.model.layers[0].mlp.act_fn(x.float()), x.float().relu().square())
    with torch.no_grad():
        ours = load_model(trained())(tokens()[None, :200])
        assert 1e-5 < relative_error(wide(tokens()[None, :200]).logits, ours) < 0.05


def test_the_tokenizer_gives_our_tokens_and_every_text_back(tmp_path):
    lerope.export(trained(), tmp_path / "out")
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "out"), Tokenizer(tokenizer_path())
    random = np.random.default_rng(0)
    alphabet = list(" \n\t  abcdefgh0123()=:._\"'\u00e9\u65e5\U0001f642\u200d\x00\x7f")
    texts = ["", " ", "   leading", "trailing   ", "\n\n\n", text()[:5000], "a" * 300, " " * 301, "\u00a0\u3000"]
    texts += ["".join(random.choice(alphabet, size=random.integers(1, 60))) for _ in range(500)]
    for each in texts:
        ids = theirs(each).input_ids
        assert ids == ours.encode([each])[0].tolist()[:-1], repr(each)
        assert theirs.decode(ids, skip_special_tokens=True) == each, repr(each)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (1, 2, 0)
    rows = theirs(["one", "one and two"], padding=True)
    assert rows.input_ids[0][0] == 0
    assert rows.attention_mask[0][0] == 0


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "apertus", "phi3", "olmo2"])
@pytest.mark.parametrize("length", [None, 512])
def test_converted_models(family, length, tmp_path):
    """Against the converted model with an extension's frequencies and its attention scaled, layer by layer."""
    model = lerope.convert(toy(family)).eval()
    rotary = rotary_of(model)
    encoding = rotary.encodings["shared"]
    with torch.no_grad():
        encoding.alpha.copy_(torch.randn(encoding.alpha.shape, generator=torch.Generator().manual_seed(0)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(UserWarning, match="no tokenizer was given"):
        lerope.export(model, tmp_path / "out", length=length, temperature=0.5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    if length is not None:
        frequencies = encoding.frequencies().detach()
        options = {"train_length": 256, "length": length, "method": "yarn", "temperature": 0.5}
        extension = lerope.extend(frequencies, **options)
        rotary.inv_freq = encoding.freeze(extension.frequencies)
        for layer in model.model.layers:
            layer.self_attn.scaling *= extension.logit_scale
    assert not [name for name in load_file(tmp_path / "out" / "model.safetensors") if "rotary" in name]
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.randint(97, (1, 300 if length else 200), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = model(ids).logits
        assert relative_error(plain(ids).logits, wanted) < 1e-5
    assert plain.config.max_position_embeddings == (length or 256)


def turns(layer) -> bool:
    """Whether an attention layer has a rotation, as its family says it."""
    without = {"SmolLM3Attention": "use_rope", "Cohere2Attention": "sliding_window", "Exaone4Attention": "is_sliding"}
    return bool(getattr(layer, without.get(type(layer).__name__, "scaling")))


@pytest.mark.parametrize("family", QUERIES)
@pytest.mark.filterwarnings("ignore:no tokenizer was given")
def test_the_temperature_scales_queries_whatever_makes_them(family, tmp_path):
    """Against the converted model whose attention is scaled in the layers that turn, and in no others."""
    model = lerope.convert(make_other(family)).eval()
    rotary = rotary_of(model)
    shake(model)
    before, attention = (
        {name: value.clone() for name, value in model.state_dict().items()},
        model.config._attn_implementation,
    )
    lerope.export(model, tmp_path / "out", length=512, temperature=0.8)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.config._attn_implementation == attention
    encoding = rotary.encodings["shared"]
    options = {"train_length": 256, "length": 512, "method": "yarn", "temperature": 0.8}
    extension = lerope.extend(encoding.frequencies().detach(), **options)
    rotary.inv_freq = encoding.freeze(extension.frequencies)
    layers = [module for module in model.modules() if hasattr(module, "scaling") and hasattr(module, "layer_idx")]
    ids = torch.randint(97, (1, 300), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        cold = model(ids).logits
        for layer in layers:
            layer.scaling *= extension.logit_scale if turns(layer) else 1.0
        wanted = model(ids).logits
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids).logits
    # Where weights are folded a product is rounded elsewhere; these toys have attention that is nearly one-hot.
    assert relative_error(found, wanted) < 1e-4
    assert relative_error(cold, wanted) > 5e-3  # the temperature does something
    assert [turns(layer) for layer in layers].count(False) == (family in ("smollm3", "cohere2", "exaone4"))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("olmo", {"clip_qkv": 0.5}, r"OlmoForCausalLM, which clips its queries \(clip_qkv = 0.5\); pass temperature=0"),
        ("gpt_neox", {}, "GPTNeoXAttention, because .*; pass temperature=0"),
        ("falcon", {}, "FalconForCausalLM, because its queries .*; pass temperature=0"),
    ],
)
@pytest.mark.filterwarnings("ignore:no tokenizer was given")
def test_a_temperature_that_cannot_be_folded_is_refused(family, changes, message, tmp_path):
    model = lerope.convert(make_other(family, **changes))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message) as caught:
        lerope.export(model, tmp_path / "out", length=512)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    lerope.export(model, tmp_path / "out", length=512, temperature=0.0)


def test_a_norm_without_gain_is_seen_to_hold_the_queries(tmp_path):
    model = toy("llama")
    for layer in model.model.layers:
        layer.self_attn.q_proj = torch.nn.Sequential(
            layer.self_attn.q_proj, torch.nn.RMSNorm(64, elementwise_affine=False)
        )
    with pytest.raises(ValueError, match="LlamaAttention, because it has no known weights"):
        lerope.export(lerope.convert(model), tmp_path / "out", length=512)


def test_bfloat16_queries_are_scaled_too(tmp_path):
    model = lerope.convert(make_other("lfm2")).to(torch.bfloat16)
    with pytest.warns(UserWarning, match="no tokenizer was given"):
        lerope.export(model, tmp_path / "out", length=512, temperature=0.8)
    weights, name = load_file(tmp_path / "out" / "model.safetensors"), "model.layers.1.self_attn.q_layernorm.weight"
    scale = (0.8 * np.log(2) + 1) ** 2
    torch.testing.assert_close(weights[name], (model.state_dict()[name].double() * scale).bfloat16())


def test_a_converted_model_takes_a_tokenizer_along(tmp_path):
    lerope.export(trained(), tmp_path / "ladder")
    model = lerope.convert(toy("llama", vocab_size=VOCAB_SIZE))
    lerope.export(model, tmp_path / "out", tokenizer=AutoTokenizer.from_pretrained(tmp_path / "ladder"))
    found = AutoTokenizer.from_pretrained(tmp_path / "out")("def f(x):\n    return x").input_ids
    assert found == Tokenizer(tokenizer_path()).encode(["def f(x):\n    return x"])[0].tolist()[:-1]


def test_a_converted_model_goes_on_learning_from_its_export(tmp_path):
    model = lerope.convert(toy("llama", tie_word_embeddings=True))
    shake(model)
    with pytest.warns(UserWarning, match="no tokenizer was given"):
        lerope.export(model, tmp_path / "out")
    again = lerope.convert(AutoModelForCausalLM.from_pretrained(tmp_path / "out"))
    ours, theirs = (rotary_of(each).encodings["shared"].alpha for each in (model, again))
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, torch.zeros_like(ours))
    assert again.lm_head.weight is again.model.embed_tokens.weight


class _Tilted(lerope.RoPE):
    def rotation(self, positions, layer=None, origin=0):
        return super().rotation(positions + 1, layer, origin)


def _tied():
    model = untrained(lerope.RoPE(64))
    model.head.weight = model.embedding.weight
    return model


def _quantised():
    model = untrained(lerope.RoPE(64))
    state = model.state_dict
    model.state_dict = lambda: {name: value.to(torch.int8) for name, value in state().items()}
    return model


def _marked_quantised():
    model = lerope.convert(toy("llama"))
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    return model


def _damaged(tmp_path):
    (tmp_path / "bad.model").write_bytes(b"not a real tokenizer")
    return trained(), {"tokenizer": tmp_path / "bad.model"}


BAD = {
    "format": (lambda _: (trained(), {"format": "onnx"}), r"format must be .*got 'onnx'"),
    "method": (lambda _: (trained(), {"method": "magic", "length": 512}), r"method must be .*got 'magic'"),
    "dtype": (lambda _: (trained(), {"dtype": "int8"}), r"dtype must be .*got 'int8'"),
    "short length": (
        lambda _: (trained(), {"length": 128}),
        "length must be more than the train length of 256; got 128",
    ),
    "no length": (lambda _: (trained(), {"length": 0}), "length must be"),
    "band": (lambda _: (trained(), {"length": 512, "method": "dominant_band"}), "dominant_band must be 0 to 31"),
    "no run": (lambda path: (path / "nothing", {}), "nothing holds no model; name the directory of a finished run"),
    "no tokenizer": (lambda path: (trained(), {"tokenizer": path / "none.model"}), "none.model does not exist; name"),
    "no SentencePiece": (_damaged, "bad.model is not a SentencePiece model"),
    "layer": (lambda _: (untrained(odd_lerope(sharing="layer", num_layers=2)), {"train_length": 9}), "one set for all"),
    "head": (lambda _: (untrained(odd_lerope(sharing="head", num_heads=2)), {"train_length": 9}), "sharing='head'"),
    "own rotation": (lambda _: (untrained(_Tilted(64)), {"train_length": 9}), "_Tilted does more"),
    "tied": (lambda _: (_tied(), {"train_length": 9}), "a head of its own .*tied to the embedding"),
    "quantised": (lambda _: (_quantised(), {"train_length": 9}), "got torch.int8; export before quantising"),
    "train length": (lambda _: (untrained(lerope.RoPE(64)), {}), "train_length must be given for a model in memory"),
    "no RoPE": (lambda _: (gpt2(), {}), "one that lerope.convert made; got GPT2LMHeadModel"),
    "not converted": (lambda _: (toy("llama"), {}), "one that lerope.convert made; got LlamaForCausalLM"),
    "quantised converted": (lambda _: (_marked_quantised(), {}), "quantised weights; export it before quantising"),
    "wrapped": (lambda _: (torch.nn.Sequential(lerope.convert(toy("llama"))), {}), "wrapped in Sequential"),
    "dtype of a converted": (lambda _: (lerope.convert(toy("llama")), {"dtype": "bfloat16"}), "dtype is for ladder"),
    "GGUF without a tokenizer": (
        lambda _: (untrained(lerope.RoPE(64)), {"train_length": 9, "format": "gguf"}),
        "tokenizer must be given for a GGUF file",
    ),
    "no model": (lambda _: (7, {}), "got int"),
    "GGUF of gelu": (lambda _: (trained("gelu", 10), {"format": "gguf"}), "'gelu' cannot run in llama.cpp"),
    "GGUF of Qwen3": (
        lambda _: (lerope.convert(toy("qwen3")), {"format": "gguf"}),
        "llama.cpp ignores frequency factors in architecture 'qwen3'",
    ),
    "GGUF of Llama": (lambda _: (lerope.convert(toy("llama")), {"format": "gguf"}), "gguf' is for ladder models"),
    "kinds of layers": (
        lambda _: (lerope.convert(toy("gemma3")), {"length": 512}),
        "several kinds of layers",
    ),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.filterwarnings("ignore:no tokenizer was given")
def test_bad_input_is_one_sentence_and_writes_nothing(case, tmp_path):
    make, message = BAD[case]
    model, options = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message) as caught:
        lerope.export(model, tmp_path / "out", **options)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; name a new folder"):
        lerope.export(trained(), tmp_path)
    with pytest.raises(ValueError, match=r"notes.txt is a file"):
        lerope.export(trained(), tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert lerope.export(trained(), tmp_path / "empty") == tmp_path / "empty"
    assert (tmp_path / "empty" / "config.json").is_file()


def test_a_target_that_is_a_link(tmp_path):
    (tmp_path / "disk" / "empty").mkdir(parents=True)
    (tmp_path / "disk" / "full").mkdir()
    (tmp_path / "disk" / "full" / "notes.txt").write_text("mine")
    for name in ("empty", "full", "nowhere"):
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").symlink_to(tmp_path / "disk" / "full" / "notes.txt")
    for name in ("empty", "nowhere"):
        assert lerope.export(trained(), tmp_path / name) == tmp_path / name
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "disk" / name / "config.json").is_file()
    for name, message in (
        ("full", "is not empty"),
        ("loop", r"loop cannot be reached \(Too many levels"),
        ("file", "file is a file"),
    ):
        with pytest.raises(ValueError, match=message):
            lerope.export(trained(), tmp_path / name)
    assert [path.name for path in (tmp_path / "disk" / "full").iterdir()] == ["notes.txt"]


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lerope.interop.export_hf.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        lerope.export(trained(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_more_pieces_than_the_model_has_tokens(tmp_path):
    model = untrained(lerope.RoPE(64))
    model.config.__dict__["vocab_size"] = VOCAB_SIZE - 1
    with pytest.raises(ValueError, match="has 512 pieces but the model has a vocabulary of 511"):
        lerope.export(model, tmp_path / "out", train_length=9, tokenizer=tokenizer_path())
