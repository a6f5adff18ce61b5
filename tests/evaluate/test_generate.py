"""A text written with a cache is the one that full recomputation gives, and tokens are drawn as they should be."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lerope.core.ladder import ModelConfig
from lerope.data.tokenizer import Tokenizer
from lerope.evaluate import generate as module
from lerope.evaluate.generate import GenerateRequest, Writer, choose
from lerope.evaluate.scorer import Scorer, Stretch
from lerope.model.cache import Cache
from lerope.model.init import init_weights
from lerope.model.spec import build_encoding
from lerope.model.transformer import Transformer
from lerope.rotary.encodings import RoPE
from tests.evaluate.copier import VOCAB_SIZE, copier, copier_tokenizer, write_run
from tests.made_presets import save_preset

LENGTH = 24
CONFIG = ModelConfig(num_layers=2, num_heads=4, head_dim=16, vocab_size=VOCAB_SIZE)
PROMPT = "The special magic number"
ENCODINGS = (
    *("nope", "rope", "rope,base=500,rotary_dim=8", "rope,layout=interleaved", "prope,p=0.5", "rope,horizon=96"),
    *(f"lerope,sharing={sharing}" for sharing in ("shared", "layer", "head", "layer_head")),
    *("lerope,parametrization=linear", "lerope,parametrization=direct", "lerope,horizon=96"),
    *("FILE", "preset:PRESET", "lerope,init=preset:PRESET", "tests.evaluate.test_generate:Own"),
)
WAYS = (
    Stretch(),
    Stretch(method="pi"),
    Stretch(method="ntk_by_parts"),
    Stretch(method="slow_bands", temperature=0.1),
    Stretch(method="logits", temperature=0.3),
    Stretch(method="yarn", temperature=0.3),
    Stretch(method="dominant_band", dominant_band=2, temperature=0.2),
)


class Own(RoPE):
    """An encoding of one's own, with frequencies that no other has."""

    def frequencies(self, layer=None):
        return 1 / (1 + 3 * torch.arange(self.head_dim // 2, dtype=torch.float32))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    copier_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def build(tokenizer, tmp_path_factory):
    """Random models by encoding, as runs of rows of 24 tokens."""
    folder = tmp_path_factory.mktemp("runs")
    build_encoding("lerope", CONFIG).save(folder / "frequencies.json", LENGTH)
    places = {"FILE": str(folder / "frequencies.json"), "PRESET": str(save_preset(folder, LENGTH, num_bands=8))}
    made = {}

    def of(name):
        if name not in made:
            text = name
            for word, path in places.items():
                text = text.replace(word, path)
            model = Transformer(CONFIG, build_encoding(text, CONFIG, LENGTH)).eval()
            init_weights(model, 3)
            random = torch.Generator().manual_seed(5)
            with torch.no_grad():
                for alpha in model.encoding.parameters():
                    alpha += 0.3 * torch.randn(alpha.shape, generator=random)
                for block in model.blocks:  # large enough logits for positions to matter
                    block.attention.q_norm.weight.fill_(4.0)
            made[name] = (model, write_run(folder / str(len(made)), model, tokenizer, LENGTH))
        return made[name]

    return of


def recomputed(model, tokens, stretch, precision="float32", length=None):
    """Logarithms of the probabilities of every next token, from the whole text at once, by the scorer."""
    scorer = Scorer(model, train_length=LENGTH, stretch=stretch, precision=precision)
    rows = [np.array([*tokens, 0], np.uint16)]
    return scorer.log_probabilities(rows, [len(tokens)], [length or len(tokens)])[0]


def request_for(stretch, **changes):
    fields = {"tokens": 30, "temperature": 0.0, "device": "cpu", "extend": stretch.method, **changes}
    return GenerateRequest(**fields, extend_temperature=stretch.temperature, dominant_band=stretch.dominant_band)


def written(path, request, monkeypatch):
    """The tokens of a text, the prompt's among them, and the logits that each was chosen by."""
    seen = []
    real = module.choose
    monkeypatch.setattr(module, "choose", lambda logits, *rest: seen.append(logits) or real(logits, *rest))
    writer = Writer(path, request)
    (start,) = writer.tokenizer.encode([PROMPT])
    start = start[:-1].tolist()
    return [*start, *writer.tokens(start)], len(start), torch.stack(seen)


@pytest.mark.parametrize("stretch", WAYS, ids=lambda way: way.method)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_it_is_what_full_recomputation_gives(build, encoding, stretch, monkeypatch):
    model, path = build(encoding)
    request = request_for(stretch)
    tokens, num_prompt, logits = written(path, request, monkeypatch)
    length = num_prompt + request.tokens
    assert length > LENGTH + 10
    expected = recomputed(model, tokens, stretch, length=length)[num_prompt - 1 :][: len(logits)]
    # Float32 sums over 64 dimensions in another order; logits are of order 1.
    torch.testing.assert_close(logits.log_softmax(-1), expected, atol=2e-5, rtol=1e-5)
    assert tokens[num_prompt:] == expected.argmax(-1).tolist()[: len(tokens) - num_prompt]


@pytest.mark.parametrize("encoding", ["lerope", "lerope,sharing=layer_head"])
def test_extensions_differ_and_begin_beyond_the_train_length(build, encoding, monkeypatch):
    _, path = build(encoding)
    texts = {way.method: written(path, request_for(way), monkeypatch)[2] for way in WAYS}
    by_position = texts.pop("logits")  # begins where the text does
    assert torch.equal(by_position[0], texts["none"][0])
    assert (by_position[-1] - texts["none"][-1]).abs().max() > 1e-3
    first = [logits[0] for logits in texts.values()]
    assert all((a - b).abs().max() > 1e-3 for i, a in enumerate(first) for b in first[:i])
    short = [written(path, request_for(way, tokens=4), monkeypatch)[2] for way in WAYS]
    assert all(torch.equal(logits, short[0]) for logits in short)


@pytest.mark.parametrize("encoding", ["rope", "lerope,sharing=layer_head"])
@pytest.mark.parametrize("stretch", [WAYS[0], WAYS[3]], ids=lambda way: way.method)
def test_bf16_is_as_near_as_evaluation_in_bf16(build, encoding, stretch, monkeypatch):
    model, path = build(encoding)
    request = request_for(stretch, precision="bf16")
    tokens, num_prompt, logits = written(path, request, monkeypatch)
    length = num_prompt + request.tokens
    exact, rounded = (
        recomputed(model, tokens, stretch, precision, length)[num_prompt - 1 :][: len(logits)]
        for precision in ("float32", "bf16")
    )
    error, usual = ((found - exact).square().mean() for found in (logits.log_softmax(-1), rounded))
    assert 0 < error < 2 * usual


def test_a_prompt_may_be_read_in_parts(build):
    model, _ = build("lerope,sharing=layer")
    tokens = torch.randint(0, VOCAB_SIZE, (2, 600), generator=torch.Generator().manual_seed(0))
    cache = Cache(CONFIG.num_layers)
    with torch.no_grad():
        parts = [model.hidden(part, cache=cache) for part in tokens.split([3, 1, 250, 1, 345], dim=1)]
        whole = model.hidden(tokens)
    assert cache.length == 600
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=3e-5, rtol=1e-5)


def test_passages_of_one_writer_may_take_turns(build):
    _, path = build("lerope")
    request = request_for(WAYS[1], temperature=1.0)
    alone = [Writer(path, request).passage(prompt) for prompt in ("The", PROMPT)]
    texts = ["".join(passage) for passage in alone]
    writer = Writer(path, request)
    together = [writer.passage(prompt) for prompt in ("The", PROMPT)]
    for _ in zip(*together, strict=False):
        pass
    assert [passage.text for passage in together] == [
        text[: len(p.text)] for text, p in zip(texts, together, strict=True)
    ]
    assert texts[0] != texts[1]


def test_a_model_that_copies_copies(tokenizer, tmp_path):
    path = write_run(tmp_path / "copier", copier(), tokenizer)
    prompt = " The special magic number for quiet-river is 7204518. The special magic number for quiet-river is"
    passage = Writer(path, GenerateRequest(tokens=9, temperature=0.0, device="cpu")).passage(prompt)
    assert "".join(passage).startswith(" 7204518.")
    assert passage.tokens_per_second > 0


def reference(logits, temperature, top_p):
    """The distribution itself, by definition: the smallest set of likeliest tokens that has the mass, rescaled."""
    weights = [math.exp((float(x) - float(max(logits))) / temperature) for x in logits]
    shares = [w / math.fsum(weights) for w in weights]
    kept, mass = {}, 0.0
    for token in sorted(range(len(shares)), key=lambda t: -shares[t]):
        kept[token] = shares[token]
        mass += shares[token]
        if mass >= top_p:
            break
    return {token: share / mass for token, share in kept.items()}


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.9, 1.0])
def test_draws_follow_the_exact_distribution(temperature, top_p):
    logits = 2 * torch.randn(50, generator=torch.Generator().manual_seed(1))
    expected = reference(logits.tolist(), temperature, top_p)
    # Draws evenly from 0 to 1 fall on each token as often as it is likely, to one draw.
    count = 20_000
    found = [choose(logits, temperature, top_p, (i + 0.5) / count) for i in range(count)]
    assert set(found) <= set(expected)
    for token, share in expected.items():
        assert abs(found.count(token) - share * count) <= 1


def test_extremes_of_drawing():
    logits = torch.tensor([0.0, 3.0, -math.inf, 2.0])
    assert choose(logits, 0.0, 1.0, 0.999) == 1
    for tiny in (1e-320, 1e-30):
        assert choose(logits, tiny, 1.0, 0.999999) == 1
    assert {choose(logits, 1e300, 1.0, draw) for draw in (0.0, 0.4, 0.7, 1 - 2**-53)} == {0, 1, 3}
    assert choose(torch.zeros(7), 1.0, 1.0, 1 - 2**-53) in range(7)


def test_a_seed_gives_a_text(build):
    _, path = build("lerope")
    request = GenerateRequest(tokens=40, temperature=1.0, top_p=1.0, seed=3, device="cpu")
    texts = ["".join(Writer(path, replace(request, seed=seed)).passage(PROMPT)) for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


def test_the_end_of_a_document_ends_the_text(build, tokenizer, monkeypatch):
    _, path = build("rope")
    chosen = [300, 301, Tokenizer(tokenizer).eos]
    monkeypatch.setattr(module, "choose", lambda *_: chosen.pop(0))
    passage = Writer(path, GenerateRequest(device="cpu")).passage("The")
    assert "".join(passage) == passage.text == Tokenizer(tokenizer).decode([300, 301])
    assert (passage.is_ended, passage.num_tokens) == (True, 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", 0),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("seed", -1),
        ("seed", 1 << 63),
        ("extend", "stretch"),
        ("extend_temperature", -1.0),
        ("dominant_band", 3),
        ("precision", "float16"),
    ],
)
def test_bad_requests_name_the_field_and_the_value(field, value):
    with pytest.raises(ValueError, match=rf"{field}.*{value if field != 'dominant_band' else 'none'}"):
        GenerateRequest(**{field: value})


def test_what_cannot_be_written(build, tokenizer, tmp_path):
    model, path = build("rope")
    with pytest.raises(ValueError, match="prompt"):
        Writer(path, GenerateRequest(device="cpu")).passage("")
    with pytest.raises(ValueError, match=r"tokens must be at most 16,777,\d+ after"):
        Writer(path, GenerateRequest(tokens=1 << 24, device="cpu")).passage("x")
    with pytest.raises(ValueError, match="dominant_band must be 0 to 7"):
        list(Writer(path, request_for(Stretch(method="dominant_band", dominant_band=99))).passage("x"))
    bare = write_run(tmp_path / "bare", model, tokenizer, LENGTH)
    (bare / "model" / "tokenizer.model").unlink()
    with pytest.raises(ValueError, match=r"tokenizer\.model is missing"):
        Writer(bare, GenerateRequest(device="cpu"))
    broken = Transformer(CONFIG, build_encoding("rope", CONFIG))
    broken.load_state_dict({name: value * math.nan for name, value in model.state_dict().items()})
    diverged = write_run(tmp_path / "diverged", broken, tokenizer, LENGTH)
    with pytest.raises(ValueError, match="diverged"):
        list(Writer(diverged, GenerateRequest(device="cpu")).passage("x"))
