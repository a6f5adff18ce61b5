"""The choice of attention: measured once, remembered, and never stopped by what is in the cache folder."""

import json
import os

import pytest
import torch

from lerope.model.kernels import fastest as module
from lerope.model.kernels.fastest import fastest, measure

IDS = torch.zeros(2, 64, dtype=torch.int64)
CUDA = torch.device("cuda")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A GPU that is not there, and a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A GPU")
    monkeypatch.setattr(module, "backend_obstacle", lambda backend, device, dtype: None)
    monkeypatch.setattr(module, "version", lambda package: {"flash-attn-4": "4.0.1"}[package])
    return tmp_path / "lerope" / "attention.json"


@pytest.fixture
def measured(monkeypatch):
    """How often a measurement was made; varlen wins."""
    calls = []

    def fake(backends, *args):
        calls.append(backends)
        return {backend: 1.0 if backend == "varlen" else 2.0 for backend in backends}

    monkeypatch.setattr(module, "measure", fake)
    return calls


def ask(ids=IDS, num_heads=4, head_dim=64, dtype=torch.bfloat16):
    return fastest(ids, num_heads, head_dim, dtype, CUDA)


def test_a_measurement_is_made_once_for_each_shape(cache, measured):
    assert ask() == "varlen"
    assert ask() == "varlen"
    assert measured == [["flex", "varlen", "flash4"]]
    ((key, value),) = json.loads(cache.read_text()).items()
    where = f"A GPU, torch {torch.__version__}, flash-attn-4 4.0.1, flex/varlen/flash4 on the device"
    assert key == f"{where}: 2 rows of 64, 4 heads of 64, torch.bfloat16, documents of 64"
    assert value == {"backend": "varlen", "milliseconds": {"flex": 2.0, "varlen": 1.0, "flash4": 2.0}}
    others = (
        {"num_heads": 8},
        {"head_dim": 128},
        {"dtype": torch.float16},
        {"ids": IDS[:1]},
        {"ids": torch.arange(128).view(2, 64) // 4},
    )
    for change in others:
        ask(**change)
    assert len(measured) == 1 + len(others)
    assert len(json.loads(cache.read_text())) == 1 + len(others)


def test_documents_about_as_long_share_a_measurement(cache, measured):
    ask(torch.arange(128).view(2, 64) // 8)
    ask(torch.arange(128).view(2, 64) // 9)
    assert len(measured) == 1


def test_what_is_remembered_is_taken(cache, measured):
    ask()
    known = json.loads(cache.read_text())
    cache.write_text(json.dumps({key: {"backend": "flex"} for key in known}))
    assert ask() == "flex"
    assert len(measured) == 1


def test_a_remembered_backend_that_is_gone_is_measured_again(cache, measured, monkeypatch):
    ask()
    missing = {"varlen": "gone"}
    monkeypatch.setattr(module, "backend_obstacle", lambda backend, device, dtype: missing.get(backend))
    assert ask() == "flex"
    assert measured[-1] == ["flex", "flash4"]


DAMAGE = {
    "empty": "",
    "half": '{"a": {"backend": "fl',
    "a list": "[1, 2]",
    "a number": "3",
    "no text": b"\xff\xfe\x00",
    "another backend": '{KEY: {"backend": "magic"}}',
    "no backend": "{KEY: {}}",
    "a name alone": '{KEY: "flex"}',
    "nothing": "{KEY: null}",
    "a list of backends": '{KEY: {"backend": ["flex"]}}',
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_costs_a_measurement_and_is_mended(cache, measured, kind):
    ask()
    (key,) = json.loads(cache.read_text())
    content = DAMAGE[kind]
    cache.write_bytes(content if isinstance(content, bytes) else content.replace("KEY", json.dumps(key)).encode())
    assert ask() == "varlen"
    assert len(measured) == 2
    assert ask() == "varlen"
    assert len(measured) == 2


@pytest.mark.parametrize("kind", ["a file in its place", "not to be written"])
def test_a_folder_that_cannot_be_written_costs_a_measurement(cache, measured, kind):
    if kind == "a file in its place":
        cache.parent.write_text("")
    else:
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
        cache.parent.mkdir()
        cache.parent.chmod(0o500)
    assert ask() == "varlen"
    assert ask() == "varlen"
    assert len(measured) == 2
    assert not cache.exists()


def test_nothing_is_left_beside_the_file(cache, measured):
    ask()
    ask(num_heads=8)
    assert [path.name for path in cache.parent.iterdir()] == ["attention.json"]


def test_nothing_to_choose_is_not_measured(cache, measured, monkeypatch):
    assert fastest(IDS, 4, 64, torch.float32, torch.device("cpu")) == "sdpa"
    monkeypatch.setattr(module, "backend_obstacle", lambda b, device, dtype: None if b in ("sdpa", "flex") else "no")
    assert ask(dtype=torch.float32) == "flex"
    assert not measured
    assert not cache.exists()


class Clock:
    """An event of a GPU that is not there: each one is a millisecond after the last."""

    now = 0.0

    def __init__(self, enable_timing):
        pass

    def record(self):
        Clock.now += 1.0
        self.time = Clock.now

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return end.time - self.time


def masks(monkeypatch, problems=None):
    """Attention by backends of which some cannot run; what was asked of the device, in order."""
    asked = []

    class Mask:
        def __init__(self, ids, backend):
            self.backend = backend
            if backend in (problems or {}):
                raise problems[backend]

        def attend(self, q, k, v):
            asked.append(self.backend)
            return q * k * v

    monkeypatch.setattr(module, "DocumentMask", Mask)
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: asked.append("asleep"))
    return asked


def times(*backends):
    return measure([*backends], IDS, 2, 8, torch.float32, torch.device("cpu"))


def test_backends_take_turns(monkeypatch):
    asked = masks(monkeypatch)
    assert times("flex", "varlen") == {"flex": 1.0 / module._CALLS, "varlen": 1.0 / module._CALLS}
    turns = {b: ["asleep", *[b] * module._CALLS] for b in ("flex", "varlen")}
    first = [step for b, turn in turns.items() for step in [*[b] * module._WARM_UP_CALLS, *turn]]
    assert asked == first + [*turns["flex"], *turns["varlen"]] * (module._ROUNDS - 1)


def test_a_backend_that_cannot_run_does_not_shorten_the_others_measurement(monkeypatch):
    asked = masks(monkeypatch, {"flash4": RuntimeError("no kernel")})
    assert times("flex", "flash4", "varlen").keys() == {"flex", "varlen"}
    assert asked.count("asleep") == 2 * module._ROUNDS


def test_what_a_library_raises_is_no_end_of_the_run(monkeypatch):
    """Of whatever class: a compiler's exception of its own is no RuntimeError, and an assertion is none either."""

    class DSLRuntimeError(Exception):
        pass

    masks(monkeypatch, {"flash4": DSLRuntimeError("no kernel"), "varlen": AssertionError("head_dim")})
    assert times("flex", "varlen", "flash4").keys() == {"flex"}


def test_where_nothing_runs_the_first_problem_is_raised(monkeypatch):
    masks(monkeypatch, {"flex": RuntimeError("first"), "varlen": RuntimeError("second")})
    with pytest.raises(RuntimeError, match="first"):
        times("flex", "varlen")


def test_a_backend_that_came_since_is_measured(cache, measured, monkeypatch):
    can = {"flex", "varlen"}
    monkeypatch.setattr(
        module, "backend_obstacle", lambda backend, *args: None if backend in can | {"sdpa"} else "missing"
    )
    ask()
    ask()
    assert len(measured) == 1
    can.add("flash4")
    ask()
    assert len(measured) == 2


def test_another_version_of_flash_attention_4_is_measured(cache, measured, monkeypatch):
    ask()
    monkeypatch.setattr(module, "version", lambda package: "4.0.2")
    ask()
    ask()
    assert len(measured) == 2
    old, new = json.loads(cache.read_text())
    assert new == old.replace("4.0.1", "4.0.2") != old
