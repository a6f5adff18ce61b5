"""Damaged and odd inputs through the commands that read them: fine or one sentence, and damage never unnoticed.

A small share here, a larger one marked slow; all of it is `python -m tests.fuzz.suite --all`.
"""

import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lerope.core.encoding import EncodingSpec
from lerope.core.files import parse_json
from lerope.results import _KINDS, Sweep
from tests.fuzz.inputs import formats, result_formats
from tests.fuzz.suite import INPUTS, MANY, World, run_suite, some
from tests.fuzz.world import run_command

FEW = {
    "JSON files": 600,
    "JSON lines": 60,
    "binary files": 50,
    "command lines": 150,
    "study files": 5,
    "text sources": 15,
}
"""One in so many, in every test run."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("fuzz"))


def check(world, kind, every):
    table = run_suite(world, some(INPUTS[kind](world.path), every))
    assert table.tried[kind] > 5
    assert not table.complaints, "\n\n".join(table.complaints)


@pytest.mark.parametrize("kind", FEW)
def test_a_few_inputs(world, kind):
    check(world, kind, FEW[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", MANY)
def test_many_inputs(world, kind):
    check(world, kind, MANY[kind])


def test_every_kind_of_result_is_damaged():
    """A kind that is added is covered, and so is every field of it: damages are made from its type."""
    assert {each.type for each in result_formats()} == {*_KINDS.values()} - {Sweep}
    for each in formats():
        assert dataclasses.is_dataclass(each.type) or each.type == dict[str, Any]


def test_a_world_is_put_back_as_it_was(world):
    before = {path: path.read_bytes() for path in world.path.rglob("*") if path.is_file()}
    (world.path / "runs/rope/run.json").unlink()
    (world.path / "new").mkdir()
    (world.path / "new" / "file").write_text("")
    (world.path / "data" / "manifest.json").write_text("{")
    world.restore()
    assert {path: path.read_bytes() for path in world.path.rglob("*") if path.is_file()} == before


def test_outcomes_are_told_apart():
    def hang():
        while True:
            pass

    import tests.fuzz.world as module

    seconds, module.SECONDS = module.SECONDS, 1
    try:
        assert run_command(hang).kind == "hang"
    finally:
        module.SECONDS = seconds
    assert run_command(lambda: None).kind == "fine"
    assert run_command(lambda: 1 / 0).kind == "traceback"
    assert run_command(lambda: exit(3)).kind == "traceback"


def attempt(call):
    """(what comes of it, "") or (None, the sentence)."""
    try:
        return call(), ""
    except ValueError as error:
        return None, str(error)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=40) | st.from_regex(r"(rope|prope|lerope|nope|x:y)(,[a-z_]{1,12}=[^,]{0,12}){0,3}"))
def test_any_text_is_an_encoding_or_one_sentence(text):
    """And what is one has a spelling that means the same."""
    found, said = attempt(lambda: EncodingSpec.parse(text))
    assert said.endswith((".", "?")) if found is None else isinstance(found.name + found.label, str)


@dataclasses.dataclass(frozen=True)
class _Kind:
    name: str
    sizes: list[int]
    more: dict[str, float]


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "sizes", "more"]), inner),
).map(lambda value: str(value).replace("'", '"').encode()))  # fmt: skip
def test_any_bytes_are_an_object_or_one_sentence(content):
    found, said = attempt(lambda: parse_json(content, _Kind, "f.json", "mend it"))
    assert isinstance(found, _Kind) or (said.startswith("f.json") and said.endswith("; mend it.") and "\n" not in said)
