"""Encodings as text: what `--encoding` takes, what a run's recipe says, and what a comparison calls its methods.

rope    rope,base=500000    prope,p=0.5    lerope,sharing=layer    nope
runs/52M-lerope-42/model/frequencies.json       another run's frequencies, fixed
my_package.encodings:Wavelet,scale=2            an encoding of your own
"""

import ast
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from lerope.core.checks import check_number, check_rotary_dim

Layout = Literal["half", "interleaved"]
Parametrization = Literal["log", "linear", "direct"]
Sharing = Literal["shared", "layer", "head", "layer_head"]

BASE = 10_000.0
FROZEN = "frozen"
"""The method of a run whose frequencies come from a file."""


@dataclass(frozen=True)
class Family:
    """Encodings that differ only in their options."""

    label: str
    options: dict[str, Any]
    """With their default values."""
    learns: bool = False


FAMILIES = {
    "rope": Family("RoPE", {"base": BASE, "rotary_dim": None, "layout": "half"}),
    "prope": Family("p-RoPE", {"base": BASE, "p": 0.75, "layout": "half"}),
    "lerope": Family(
        "LeRoPE",
        {"base": BASE, "parametrization": "log", "sharing": "shared", "rotary_dim": None, "layout": "half"},
        learns=True,
    ),
    FROZEN: Family("Frozen", {}),
    "nope": Family("NoPE", {}),
}
# Options in words.
_WORDS = {"base": "base {}", "p": "p = {}", "parametrization": "{}", "sharing": "per {}"}


@dataclass(frozen=True)
class EncodingSpec:
    """An encoding, however it was spelled: `rope,base=1e4` and `rope` are equal."""

    family: str
    """A name in FAMILIES, or your own `module:name`."""
    options: tuple[tuple[str, Any], ...] = ()
    """Those that differ from their defaults, by name."""
    path: str | None = None
    """The frequencies.json of a frozen one."""

    @classmethod
    def parse(cls, text: str) -> "EncodingSpec":
        """Parses a text; raises if it is none of the kinds above or has an option that its family does not take."""
        name, *parts = text.split(",")
        if name.endswith(".json"):
            if parts:
                raise ValueError(f"encoding {text!r}: a frequencies.json takes no options; got {','.join(parts)!r}.")
            return cls(FROZEN, path=name)
        if name not in FAMILIES and not all(name.partition(":")):
            known = ", ".join(each for each in FAMILIES if each != FROZEN)
            raise ValueError(f"encoding must be {known}, a frequencies.json or module:name of your own; got {text!r}.")
        options = _options(parts, text)
        if name in FAMILIES:
            usual = FAMILIES[name].options
            for option in options:
                if option not in usual:
                    known = ", ".join(usual) or "none"
                    raise ValueError(f"encoding {text!r}: option {option!r} is unknown; {name} takes {known}.")
                if isinstance(usual[option], float):
                    check_number(f"encoding {text!r}: {option}", options[option])
            options = {option: value for option, value in options.items() if value != usual[option]}
        return cls(name, tuple(sorted(options.items())))

    @property
    def text(self) -> str:
        """Its one spelling in files."""
        return self.method if self.path is None else self.path

    @property
    def method(self) -> str:
        """Its name in comparisons; `frozen`, wherever its frequencies come from."""
        return ",".join([self.family, *(f"{option}={_spelled(value)}" for option, value in self.options)])

    @property
    def label(self) -> str:
        """Its name in words."""
        known = FAMILIES.get(self.family)
        words = [known.label if known else self.family.rpartition(":")[2]]
        for option, value in self.options:
            whole = isinstance(value, int | float) and float(value).is_integer()
            shown = f"{int(value):,}" if whole else str(value).replace("_", " and ")
            words.append(_WORDS.get(option, f"{option} {{}}").format(shown))
        return ", ".join(words)

    @property
    def name(self) -> str:
        """Its name in folder names: lerope-sharinglayer, frozen-52M-lerope-42."""
        if self.path is not None:
            return f"{FROZEN}-{_source(PurePath(self.path))}"
        extras = [f"{option}{_spelled(value)}" for option, value in self.options]
        return "-".join([self.family.rpartition(":")[2], *extras])

    @property
    def learns(self) -> bool:
        """Whether frequencies may change in training; those of your own encodings may."""
        return self.family not in FAMILIES or FAMILIES[self.family].learns

    @property
    def base(self) -> float | None:
        """The base of the geometric series it starts from; None if there is none or it is unknown."""
        if "base" not in FAMILIES.get(self.family, Family("", {})).options:
            return None
        return float(dict(self.options).get("base", BASE))

    def frequencies(self, head_dim: int) -> list[float] | None:
        """RoPE's frequencies at this base, band by band in radians per token; None without a base."""
        if self.base is None:
            return None
        turning = check_rotary_dim(head_dim, dict(self.options).get("rotary_dim"))
        return [self.base ** (-2 * band / turning) for band in range(turning // 2)]


def _options(parts: list[str], text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in parts:
        option, equals, value = part.partition("=")
        if not equals or not option.isidentifier() or option in options:
            raise ValueError(
                f"encoding {text!r}: options must be name=value, each once, separated by commas; got {part!r}."
            )
        try:
            options[option] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[option] = value
    return options


def _spelled(value: Any) -> str:
    """A value as `_options` reads it back."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return str(int(value))
    return str(value)


def _source(path: PurePath) -> str:
    """The name for a frequencies.json: that of its run, if it is in one."""
    return path.parts[-3] if path.parts[-2:] == ("model", "frequencies.json") and len(path.parts) > 2 else path.stem
