"""One grammar for encodings, and one identity for a method however it is spelled."""

import pytest

import lerope
from lerope.core.encoding import FAMILIES, EncodingSpec

SAME = [
    ("rope", "rope,base=10000", "rope,base=1e4", "rope,base=10_000.0", "rope,layout='half'", "rope,rotary_dim=None"),
    ("prope", "prope,p=0.75", "prope,p=.75,base=10000"),
    ("lerope", "lerope,sharing=shared", "lerope,parametrization=log,base=1e4"),
    ("lerope,base=500000,sharing=layer", "lerope,sharing=layer,base=5e5", "lerope,sharing='layer',base=500000.0"),
    ("my.module:Own,b=2,a=x", "my.module:Own,a=x,b=2"),
    ("lerope,init=preset:mine,sharing=layer", "lerope,sharing=layer,init='preset:mine'"),
]


@pytest.mark.parametrize("spellings", SAME, ids=lambda spellings: spellings[0])
def test_one_method_has_one_identity(spellings):
    specs = [EncodingSpec.parse(text) for text in spellings]
    assert len(set(specs)) == 1
    assert len({(spec.method, spec.text, spec.name, spec.label) for spec in specs}) == 1
    assert EncodingSpec.parse(specs[0].text) == specs[0]


def test_other_methods_have_others():
    texts = ["nope", "rope", "rope,base=2048", "prope", "prope,p=0.5", "lerope", "lerope,sharing=head", "a.json", "m:x"]
    assert len({EncodingSpec.parse(text).method for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("text", "method", "label", "name"),
    [
        ("rope,base=500000.0", "rope,base=500000", "RoPE, base 500,000", "rope-base500000"),
        ("prope,p=0.5", "prope,p=0.5", "p-RoPE, p = 0.5", "prope-p0.5"),
        (
            "lerope,sharing=layer_head",
            "lerope,sharing=layer_head",
            "LeRoPE, per layer and head",
            "lerope-sharinglayer_head",
        ),
        ("lerope,rotary_dim=32", "lerope,rotary_dim=32", "LeRoPE, rotary_dim 32", "lerope-rotary_dim32"),
        ("runs/52M-lerope-43/model/frequencies.json", "frozen", "Frozen", "frozen-52M-lerope-43"),
        ("a/b/mine.json", "frozen", "Frozen", "frozen-mine"),
        ("frozen", "frozen", "Frozen", "frozen"),
        (
            "a/mine.json,head_dim=resample",
            "frozen,head_dim=resample",
            "Frozen, resampled",
            "frozen-mine-head_dimresample",
        ),
        ("preset:english", "preset:english", "Preset english", "preset-english"),
        ("preset:my/own_one.json", "preset:own_one", "Preset own_one", "preset-own_one"),
        (
            "lerope,init=preset:english",
            "lerope,init=preset:english",
            "LeRoPE, from preset english",
            "lerope-initpreset-english",
        ),
        (
            "lerope,init=preset:my/own_one.json",
            "lerope,init=preset:own_one",
            "LeRoPE, from preset own_one",
            "lerope-initpreset-own_one",
        ),
        ("pack.age:Wavelet,scale=2", "pack.age:Wavelet,scale=2", "Wavelet, scale 2", "Wavelet-scale2"),
    ],
)
def test_what_it_is_called(text, method, label, name):
    spec = EncodingSpec.parse(text)
    assert (spec.method, spec.label, spec.name) == (method, label, name)
    assert spec.text == (text if ".json" in text else method)
    assert EncodingSpec.parse(spec.text) == spec
    assert EncodingSpec.parse(method).method == method


def test_what_learns_and_where_it_starts():
    assert [name for name in FAMILIES if EncodingSpec(name).learns] == ["lerope"]
    assert EncodingSpec.parse("my:Own").learns
    assert EncodingSpec.parse("lerope,base=77").base == 77.0
    assert (
        EncodingSpec.parse("nope").base is EncodingSpec.parse("a.json").base is EncodingSpec.parse("m:x").base is None
    )
    assert EncodingSpec.parse("a.json").frequencies(64) is None
    for text, encoding in (
        ("lerope", lerope.RoPE(64)),
        ("rope,base=2048,rotary_dim=16", lerope.RoPE(64, 2048, rotary_dim=16)),
    ):
        assert EncodingSpec.parse(text).frequencies(64) == pytest.approx(encoding.frequencies().tolist(), rel=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rop", ["encoding", "'rop'"]),
        ("", ["encoding", "''"]),
        (":x", ["encoding", "':x'"]),
        ("x:", ["encoding", "'x:'"]),
        ("rope,basis=3", ["'basis'", "base, rotary_dim, layout"]),
        ("nope,base=3", ["'base'", "takes none"]),
        ("rope,base", ["name=value", "'base'"]),
        ("rope,=3", ["name=value"]),
        ("rope,base=1,base=2", ["each once"]),
        ("lerope,base=many", ["base", "'many'"]),
        ("prope,p=nan", ["p must be a finite number"]),
        ("f.json,base=3", ["'base'", "takes head_dim"]),
        ("f.json,head_dim=32", ["head_dim must be resample; got 32"]),
        ("preset:mine,base=3", ["'base'", "takes horizon"]),
        ("preset:", ["'preset:'", "preset:NAME"]),
        ("preset", ["'preset'", "preset:NAME"]),
        ("lerope,init=mine", ["init must be preset:NAME", "'mine'"]),
        ("lerope,init=preset:", ["init must be preset:NAME"]),
        ("rope,init=preset:mine", ["'init'"]),
    ],
)
def test_what_is_none_is_one_sentence(text, words):
    with pytest.raises(ValueError, match="encoding") as caught:
        EncodingSpec.parse(text)
    assert all(word in str(caught.value) for word in words), str(caught.value)
