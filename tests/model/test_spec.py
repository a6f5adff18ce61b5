"""Encodings by name, and models that come back from disk as they were."""

import inspect
import json

import pytest
import torch

import lerope
from lerope.core.encoding import FAMILIES, POSITIONS
from lerope.core.ladder import ModelConfig
from lerope.model.init import init_weights
from lerope.model.saved import load_model, save_model
from lerope.model.spec import CLASSES, build_encoding
from lerope.model.transformer import Transformer
from tests.made_presets import save_preset

CONFIG = ModelConfig(num_layers=2, num_heads=4, head_dim=16, vocab_size=40)


class Stretched(lerope.RoPE):
    """An encoding of one's own."""

    def __init__(self, head_dim, stretch=2.0):
        super().__init__(head_dim)
        self.theta = self.theta / stretch


def three_layers(head_dim):
    return lerope.LeRoPE(head_dim, sharing="layer", num_layers=3)


class Started(lerope.LeRoPE):
    """One that can start from frequencies."""

    def __init__(self, head_dim, init=None):
        super().__init__(head_dim, init=init)


class Unstarted(lerope.LeRoPE):
    """One that cannot."""

    def __init__(self, head_dim):
        super().__init__(head_dim)


def not_an_encoding(head_dim):
    return torch.nn.Linear(head_dim, 1)


def test_names_and_options(tmp_path):
    assert type(build_encoding("nope", CONFIG)) is lerope.NoPE
    assert build_encoding("rope,base=500000", CONFIG).base == 500_000
    assert build_encoding("prope,p=0.5", CONFIG).p == 0.5
    assert build_encoding("lerope", CONFIG).alpha.shape == (8,)
    assert build_encoding("lerope,parametrization=linear", CONFIG).parametrization == "linear"
    assert build_encoding("lerope,sharing=layer_head", CONFIG).alpha.shape == (2, 4, 8)
    lerope.RoPE(16, base=77.0).save(tmp_path / "frequencies.json")
    frozen = build_encoding(str(tmp_path / "frequencies.json"), CONFIG)
    assert type(frozen) is lerope.FrozenRoPE
    assert torch.equal(frozen.frequencies(), lerope.RoPE(16, base=77.0).frequencies())
    own = build_encoding("tests.model.test_spec:Stretched,stretch=4", CONFIG)
    assert torch.equal(own.frequencies(), lerope.RoPE(16).frequencies() / 4)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            "rop",
            "nope, preset:NAME, a frequencies.json or module:name of your own; got 'rop'",
        ),
        ("rope,basis=3", "option 'basis' is unknown; rope takes base, rotary_dim, layout"),
        ("rope,base", "name=value.*got 'base'"),
        ("rope,base=1,base=2", "each once"),
        ("rope,base=-1", "base must be"),
        ("rope,head_dim=8", "option 'head_dim' is unknown"),
        ("prope,p=2", "p must"),
        ("lerope,sharing=none", "sharing must be one of shared, layer, head, layer_head; got 'none'"),
        ("missing/frequencies.json", "does not exist"),
        ("missing.json,base=3", "option 'base' is unknown; frozen takes head_dim"),
        ("no_such_module:Encoding", "cannot be imported: No module named 'no_such_module'"),
        ("tests.model.test_spec:Nothing", "cannot be imported: module .* has no attribute 'Nothing'"),
        ("tests.model.test_spec:CONFIG", "must name a class or function; got ModelConfig"),
        ("tests.model.test_spec:not_an_encoding", "a lerope.Encoding; got Linear"),
        ("lerope,num_layers=3,sharing=layer", "option 'num_layers' is unknown"),
        ("tests.model.test_spec:three_layers", "must have the model's 2 layers; got 3"),
        ("frozen", "encoding 'frozen' needs frequencies"),
        ("preset:nothing.json", "needs the train length"),
    ],
)
def test_bad_specs_are_one_sentence(spec, sentence):
    with pytest.raises(ValueError, match=sentence):
        build_encoding(spec, CONFIG)


def test_the_grammar_knows_every_option_and_its_usual_value():
    for name, made in CLASSES.items():
        parameters = inspect.signature(made).parameters
        sizes = ("head_dim", "num_layers", "num_heads", "axes")  # of the model; its tokens have one axis
        usual = {option: each.default for option, each in parameters.items() if option not in sizes}
        positions = {} if name == "nope" else POSITIONS
        assert FAMILIES[name].options == {**usual, **positions}
        assert FAMILIES[name].learns == bool(list(made(16).parameters()))


def test_frequencies_of_another_head_size_are_refused(tmp_path):
    lerope.RoPE(32).save(tmp_path / "f.json")
    with pytest.raises(ValueError, match="must have the model's head_dim of 16; got 32"):
        build_encoding(str(tmp_path / "f.json"), CONFIG)


def test_another_head_size_is_resampled_only_if_asked(tmp_path):
    lerope.RoPE(32, base=77.0).save(path := tmp_path / "f.json")
    with pytest.raises(ValueError, match=r"got 32; say .*f\.json,head_dim=resample to resample it"):
        build_encoding(str(path), CONFIG)
    got = build_encoding(f"{path},head_dim=resample", CONFIG)
    torch.testing.assert_close(got.frequencies(), lerope.RoPE(16, base=77.0).frequencies(), rtol=1e-6, atol=0)


def test_sets_for_another_number_of_heads_are_refused(tmp_path):
    """CONFIG has 4 heads and 2 layers."""
    for sharing in ("head", "layer_head"):
        lerope.LeRoPE(16, sharing=sharing, num_layers=2, num_heads=2).save(path := tmp_path / f"{sharing}.json")
        with pytest.raises(ValueError, match="must have frequencies for the model's 4 heads; got 2"):
            build_encoding(str(path), CONFIG)
        lerope.LeRoPE(16, sharing=sharing, num_layers=2, num_heads=4).save(path)
        assert build_encoding(str(path), CONFIG).sharing == sharing


def test_presets_take_the_model_s_sizes(tmp_path):
    path = save_preset(tmp_path, 64, 256)
    frozen = build_encoding(f"preset:{path}", CONFIG, 128)
    assert type(frozen) is lerope.FrozenRoPE
    assert torch.equal(frozen.frequencies(), lerope.preset(path, 16, 128).frequencies())
    assert not torch.equal(frozen.frequencies(), build_encoding(f"preset:{path}", CONFIG, 256).frequencies())
    warm = build_encoding(f"lerope,init=preset:{path},sharing=layer_head", CONFIG, 128)
    assert warm.alpha.shape == (2, 4, 8)
    torch.testing.assert_close(warm.frequencies(1)[3], frozen.frequencies(), rtol=1e-6, atol=0)
    with pytest.raises(ValueError, match="needs the train length"):
        build_encoding(f"lerope,init=preset:{path}", CONFIG)
    with pytest.raises(ValueError, match="preset 'nothing' is unknown"):
        build_encoding("preset:nothing", CONFIG, 128)


def saved(tmp_path, spec="lerope"):
    model = Transformer(CONFIG, build_encoding(spec, CONFIG))
    init_weights(model, 3)
    with torch.no_grad():
        for p in model.encoding.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    tokenizer = tmp_path / "tokenizer.model"
    tokenizer.write_bytes(b"pieces")
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    save_model(tmp_path / "model", CONFIG, weights, model.encoding.artifact(64), tokenizer)
    return model


@pytest.mark.parametrize("spec", ["nope", "rope", "prope", "lerope", "lerope,sharing=layer", "lerope,sharing=head"])
def test_a_saved_model_comes_back(tmp_path, spec):
    model = saved(tmp_path, spec)
    tokens = torch.randint(40, (2, 20), generator=torch.Generator().manual_seed(2))
    want = model(tokens)
    got = load_model(tmp_path / "model")
    assert not list(got.encoding.parameters())
    assert torch.equal(got(tokens), want)
    learning = load_model(tmp_path / "model", spec)
    assert torch.equal(learning(tokens), want)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["train_length"] == 64
    assert (tmp_path / "model" / "tokenizer.model").read_bytes() == b"pieces"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "frequencies.json"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_model_is_one_sentence(tmp_path, name, damage):
    saved(tmp_path)
    path = tmp_path / "model" / name
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(
        ValueError,
        match=r"does not hold a complete model|holds no model|has no model|does not exist|JSON|config\.json",
    ):
        load_model(tmp_path / "model")


def test_a_run_directory_will_do_and_a_wrong_encoding_is_one_sentence(tmp_path):
    saved(tmp_path)
    assert isinstance(load_model(tmp_path).encoding, lerope.FrozenRoPE)
    with pytest.raises(ValueError, match=r"does not fit encoding 'rope'.*encoding.alpha"):
        load_model(tmp_path, "rope")
    with pytest.raises(ValueError, match="holds no model; name the directory of a finished run"):
        load_model(tmp_path / "nothing")


def test_weights_of_another_model_are_noticed(tmp_path):
    """The same shape, whole, and not the ones that were saved."""
    saved(tmp_path)
    path = tmp_path / "model" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors .*config\.json"):
        load_model(tmp_path / "model")


def test_where_learned_frequencies_of_one_s_own_encoding_start():
    start = lerope.FrozenRoPE(lerope.RoPE(16).frequencies() / 3)
    own = build_encoding("tests.model.test_spec:Started", CONFIG, start=start)
    torch.testing.assert_close(own.frequencies(), start.frequencies(), rtol=1e-6, atol=0)
    assert torch.equal(build_encoding("tests.model.test_spec:Started", CONFIG).frequencies(), own.theta)
    with pytest.raises(ValueError, match=r"it learns, and cannot start .* without a parameter named init"):
        build_encoding("tests.model.test_spec:Unstarted", CONFIG, start=start)
    fixed = build_encoding("tests.model.test_spec:Stretched", CONFIG, start=start)  # learns nothing, so it stays
    assert torch.equal(fixed.frequencies(), lerope.RoPE(16).frequencies() / 2)
