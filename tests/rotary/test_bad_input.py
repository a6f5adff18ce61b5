"""Bad input gets one clear ValueError that names the field and the value."""

import json
import math

import pytest
import torch
from torch import nn

import lerope
from lerope.rotary.frequencies import diagnose

X = torch.randn(2, 5, 4, 16)
F8 = torch.rand(8)
P5 = torch.arange(5)


def extend(**kwargs):
    return lerope.extend(**{"frequencies": F8, "train_length": 16, "length": 32, "method": "pi", **kwargs})


def frozen(values):
    return lerope.FrozenRoPE(torch.tensor(values))


PER_HEAD = lerope.LeRoPE(16, sharing="head", num_heads=3)
PER_LAYER = lerope.LeRoPE(16, sharing="layer", num_layers=2)
MODEL = nn.Linear(2, 2)

CASES = [
    # constructors
    (lambda: lerope.RoPE(63), "head_dim must be even", "63"),
    (lambda: lerope.RoPE(0), "head_dim must be a positive whole number", "0"),
    (lambda: lerope.RoPE(-64), "head_dim", "-64"),
    (lambda: lerope.RoPE(64.0), "head_dim", "64.0"),
    (lambda: lerope.RoPE(True), "head_dim", "True"),
    (lambda: lerope.RoPE("64"), "head_dim", "'64'"),
    (lambda: lerope.NoPE(7), "head_dim must be even", "7"),
    (lambda: lerope.LeRoPE(33), "head_dim must be even", "33"),
    (lambda: lerope.RoPE(64, base=1.0), "base must be larger than 1", "1.0"),
    (lambda: lerope.RoPE(64, base=-10_000), "base must be larger than 1", "-10000"),
    (lambda: lerope.LeRoPE(64, base=math.nan), "base must be a finite number", "nan"),
    (lambda: lerope.LeRoPE(64, base=math.inf), "base must be a finite number", "inf"),
    (lambda: lerope.RoPE(64, base="big"), "base must be a finite number", "'big'"),
    (lambda: lerope.PRoPE(64, p=1.01), r"p must lie in \[0, 1\]", "1.01"),
    (lambda: lerope.PRoPE(64, p=-0.1), r"p must lie in \[0, 1\]", "-0.1"),
    (lambda: lerope.PRoPE(64, p=math.nan), "p must be a finite number", "nan"),
    (lambda: lerope.PRoPE(65, p=0.5), "head_dim must be even", "65"),
    (lambda: lerope.LeRoPE(64, parametrization="exp"), "parametrization must be one of log, linear, direct", "'exp'"),
    (lambda: lerope.LeRoPE(64, sharing="none"), "sharing must be one of shared, layer, head, layer_head", "'none'"),
    (lambda: lerope.LeRoPE(64, sharing="layer"), "num_layers must be", "None"),
    (lambda: lerope.LeRoPE(64, sharing="head"), "num_heads must be", "None"),
    (lambda: lerope.LeRoPE(64, sharing="layer_head", num_layers=2), "num_heads must be", "None"),
    (lambda: lerope.LeRoPE(64, sharing="layer", num_layers=0), "num_layers must be", "0"),
    (lambda: lerope.LeRoPE(64, num_heads=-1), "num_heads must be", "-1"),
    (lambda: lerope.RoPE(64, layout="neox"), "layout must be one of half, interleaved", "'neox'"),
    (lambda: lerope.RoPE(64, rotary_dim=31), "rotary_dim must be even", "31"),
    (lambda: lerope.RoPE(64, rotary_dim=128), "rotary_dim must be even and at most head_dim = 64", "128"),
    (lambda: lerope.RoPE(64, rotary_dim=0.5), "rotary_dim must be a positive whole number", "0.5"),
    # frequencies
    (lambda: frozen([0.1, math.nan]), "frequencies must be finite", "nan"),
    (lambda: frozen([0.1, math.inf]), "frequencies must be finite", "inf"),
    (lambda: frozen([1, 2]), "frequencies must be float32", "int64"),
    (lambda: lerope.FrozenRoPE(F8.bfloat16()), "frequencies must be float32 or float64", "bfloat16"),
    (lambda: lerope.FrozenRoPE([0.1, 0.2]), "frequencies must be a tensor", "list"),
    (lambda: lerope.FrozenRoPE(torch.tensor(0.1)), "frequencies must have bands", r"\(\)"),
    (lambda: lerope.FrozenRoPE(torch.rand(0)), "frequencies must have bands", r"\(0,\)"),
    (lambda: lerope.FrozenRoPE(torch.rand(2, 8)), "frequencies must have shape", r"\(2, 8\)"),
    (lambda: lerope.FrozenRoPE(F8, sharing="layer"), r"frequencies must have shape \(num_layers, 8\)", r"\(8,\)"),
    (lambda: lerope.FrozenRoPE(F8.to("meta")), "frequencies are on the meta device", "meta"),
    (lambda: lerope.FrozenRoPE(F8, head_dim=8), "rotary_dim must be even and at most head_dim = 8", "16"),
    # the rotation
    (lambda: lerope.rotate(X, P5.float(), F8), "positions must be integers", "float32"),
    (lambda: lerope.rotate(X, P5.bool(), F8), "positions must be integers", "bool"),
    (lambda: lerope.rotate(X, 1.5, F8), "positions must be a tensor of integers", "1.5"),
    (lambda: lerope.rotate(X, [0, 1, 2, 3, 4], F8), "positions must be a tensor of integers", r"\[0, 1"),
    (lambda: lerope.rotate(X, [*range(999)], F8), "positions must be a tensor of integers", r"5, \.\.\.\]"),
    (lambda: lerope.rotate(X, None, F8), "positions must be a tensor of integers", "None"),
    (lambda: lerope.RoPE(16).rotation(7), "positions must be a tensor of integers", "7"),
    (lambda: lerope.RoPE(16).rotation(torch.tensor(7)), "positions must have a length dimension", "single integer"),
    (lambda: lerope.rotate(X, True, F8), "positions must be a tensor of integers", "True"),
    (lambda: lerope.rotate(X, torch.arange(4), F8), r"positions must broadcast to \(2, 5\)", r"\(4,\)"),
    (lambda: lerope.rotate(X, P5.expand(3, 5), F8), r"positions must broadcast to \(2, 5\)", r"\(3, 5\)"),
    (lambda: lerope.rotate(X, P5.to("meta"), F8), "positions must be on cpu", "meta"),
    (lambda: lerope.rotate(X, P5, torch.rand(4)), "frequencies must have 8 bands", "got 4"),
    (lambda: lerope.rotate(X, P5, torch.rand(32)), "frequencies must have 8 bands", "got 32"),
    (lambda: lerope.rotate(X, P5, torch.rand(3, 8)), "x must have a multiple of 3 heads", "got 4"),
    (lambda: lerope.rotate(X, P5, F8 * math.nan), "frequencies must be finite", "nan"),
    (lambda: lerope.rotate(X, P5, F8.half()), "frequencies must be float32 or float64", "float16"),
    (lambda: lerope.rotate(X, P5, F8, layout="pairs"), "layout must be one of", "'pairs'"),
    (lambda: lerope.rotate(X, P5, F8, rotary_dim=8), "frequencies must have 4 bands", "got 8"),
    (lambda: lerope.rotate(X.long(), P5, F8), "x must be a floating-point tensor", "int64"),
    (lambda: lerope.rotate(X.numpy(), P5, F8), "x must be a floating-point tensor", "ndarray"),
    (lambda: lerope.RoPE(16).save("."), "path must be that of a file", r"folder \."),
    (lambda: lerope.rotate(X[0, 0], P5, F8), "x must have shape", r"\(4, 16\)"),
    (lambda: lerope.rotate(X[..., :15], P5, F8), "head_dim must be even", "15"),
    (lambda: lerope.RoPE(16)(X, X[..., :8], P5), "k must have head_dim 16", "8"),
    (lambda: lerope.RoPE(16)(torch.randn(2, 5, 4, 32), None, P5), "q must have head_dim 16", "32"),
    (lambda: lerope.RoPE(16)(X[:, :1], X, 4), "q and k must have", "1 and 5"),
    (lambda: lerope.RoPE(16)(X.to("meta"), None, 4), "positions must be on cpu", "meta"),
    (lambda: lerope.NoPE(32)(X, X, P5), "q must have head_dim 32", "16"),
    (lambda: lerope.Encoding(64, torch.rand(16)), "theta must have 32 bands", "16"),
    (lambda: lerope.FrozenRoPE(F8, head_dim=0), "head_dim must be a positive", "0"),
    (lambda: PER_LAYER.frequencies("0"), "layer must be 0 to 1", "'0'"),
    (lambda: lerope.rerotate(X, P5, torch.rand(4), F8), "old and new must have", "4 and 8"),
    (lambda: lerope.RoPE(16).save("/nowhere/x.json"), "/nowhere/x.json cannot be written", "No such file"),
    (lambda: lerope.RoPE(16)(X, X.long(), P5), "k must be a floating-point tensor", "int64"),
    (lambda: lerope.RoPE(16)(None, None, P5), "q and k are both None", "None"),
    (lambda: lerope.RoPE(16)(X, X, P5.float()), "positions must be integers", "float32"),
    (lambda: lerope.NoPE(16)(X, X, P5.float()), "positions must be integers", "float32"),
    (lambda: PER_HEAD(X, None, P5), "q must have a multiple of 3 heads", "got 4"),
    (
        lambda: lerope.LeRoPE(16, sharing="head", num_heads=4)(X, X[:, :, :2], P5),
        "k must have a multiple of 4",
        "got 2",
    ),
    (lambda: PER_LAYER(X, X, P5), "layer must be 0 to 1", "None"),
    (lambda: PER_LAYER(X, X, P5, layer=2), "layer must be 0 to 1", "2"),
    (lambda: PER_LAYER.frequencies(-1), "layer must be 0 to 1", "-1"),
    (lambda: lerope.rerotate(X, P5, F8, F8 * math.inf), "frequencies must be finite", "inf"),
    (lambda: lerope.rerotate(X, 0.5, F8, F8), "positions must be a tensor of integers", "0.5"),
    (lambda: lerope.permute_layout(torch.rand(30, 4), 16, "half"), "weight must hold whole heads", r"\(30, 4\)"),
    (lambda: lerope.permute_layout(torch.rand(32, 4), 16, "other"), "target must be one of", "'other'"),
    (lambda: lerope.permute_layout([1.0], 16, "half"), "weight must hold whole heads", "list"),
    # extension, diagnosis, optimisation
    (lambda: extend(method="ntk"), "method must be one of none, pi", "'ntk'"),
    (lambda: extend(train_length=0), "train_length must be a positive whole number", "0"),
    (lambda: extend(length=-5), "length must be a positive whole number", "-5"),
    (lambda: extend(length=100.5), "length must be a positive whole number", "100.5"),
    (lambda: extend(length=torch.tensor([5.0])), "length must be integers", "float32"),
    (lambda: extend(length=torch.tensor([5, 0])), "length must be positive", "0"),
    (lambda: extend(method="dominant_band"), "dominant_band must be 0 to 7", "None"),
    (lambda: extend(method="dominant_band", dominant_band=8), "dominant_band must be 0 to 7", "8"),
    (lambda: extend(method="yarn", temperature=-0.1), "temperature must be 0 or more", "-0.1"),
    (lambda: extend(method="yarn", index_ramp_base=0.5), "base must be larger than 1", "0.5"),
    (lambda: extend(frequencies=F8 * math.nan), "frequencies must be finite", "nan"),
    (lambda: diagnose(F8, 0), "train_length must be a positive whole number", "0"),
    (lambda: lerope.RoPE(16).save("x.json", train_length=-1), "train_length must be a positive", "-1"),
    (lambda: lerope.param_groups(MODEL, lr=-1.0, weight_decay=0.1), "lr must be 0 or more", "-1.0"),
    (lambda: lerope.param_groups(MODEL, lr=1.0, weight_decay=math.nan), "weight_decay must be a finite", "nan"),
    (lambda: lerope.param_groups([], lr=1.0, weight_decay=0.1), "model must be a torch.nn.Module", "list"),
    (lambda: lerope.clip_grad_norm_(MODEL, 0.0), "max_norm must be positive", "0.0"),
    (lambda: lerope.clip_grad_norm_(MODEL, 1.0, -2.0), "frequency_max_norm must be positive", "-2.0"),
]


@pytest.mark.parametrize(("call", "field", "value"), CASES, ids=[f"{c[1]} - {c[2]}" for c in CASES])
def test_bad_input(call, field, value):
    with pytest.raises(ValueError, match=field) as caught:
        call()
    message = str(caught.value)
    assert caught.match(value)
    assert "\n" not in message
    assert message.endswith(".")


def saved(tmp_path) -> tuple[str, dict]:
    path = tmp_path / "frequencies.json"
    lerope.LeRoPE(16).save(path, train_length=64)
    return path, json.loads(path.read_text())


def change(**fields):
    return lambda content: json.dumps({**content, **fields})


def drop(name):
    return lambda content: json.dumps({key: value for key, value in content.items() if key != name})


MISMATCH = "fingerprint .* does not match"
NUMBERS = "frequencies must be lists of numbers"
DAMAGE = {
    "truncated": (lambda c: json.dumps(c)[:60], "JSON"),
    "empty": (lambda c: "", "JSON"),
    "not an object": (lambda c: "[1, 2]", "an object, got a list"),
    "edited frequency": (change(frequencies=[9.0, *[0.5] * 7]), MISMATCH),
    "edited train_length": (change(train_length=128), MISMATCH),
    "edited base": (change(base=500_000.0), MISMATCH),
    "edited fingerprint": (change(fingerprint="0" * 64), "fingerprint 000000000000 does not match"),
    "no fingerprint": (drop("fingerprint"), "fingerprint is missing"),
    "missing field": (drop("layout"), "layout is missing"),
    "unknown field": (change(colour="red"), "colour is unknown"),
    "a missing band": (change(frequencies=[0.5] * 7), r"frequencies must have shape \(8\).*\(7,\)"),
    "text for frequencies": (change(frequencies=["a"] * 8), NUMBERS),
    "ragged frequencies": (change(frequencies=[[1.0], [1.0, 2.0]]), NUMBERS),
    "nan": (change(frequencies=[math.nan] * 8), "JSON"),
    "odd head_dim": (change(head_dim=15), "head_dim must be even.*15"),
    "wrong layout": (change(layout="neox"), "layout.*'neox'"),
    "wrong sharing": (change(sharing="all"), "sharing.*'all'"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("load", [lerope.FrozenRoPE.load, lerope.LeRoPE.load], ids=["frozen", "lerope"])
def test_damaged_frequencies_json(tmp_path, damage, load):
    path, content = saved(tmp_path)
    spoil, message = DAMAGE[damage]
    path.write_text(spoil(content))
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        lerope.FrozenRoPE.load(tmp_path / "nothing.json")
    with pytest.raises(ValueError, match="cannot be read"):
        lerope.FrozenRoPE.load(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="JSON"):
        lerope.FrozenRoPE.load(tmp_path / "bytes.json")
