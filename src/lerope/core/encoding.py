"""Encodings as text: what `--encoding` takes, what a run's recipe says, and what a comparison calls its methods.

rope    rope,base=500000    prope,p=0.5    lerope,sharing=layer    nope
runs/52M-lerope-42/model/frequencies.json       another run's frequencies, fixed; of another head size as
runs/52M-lerope-42/model/frequencies.json,head_dim=resample
preset:english    preset:mine.json              a preset's frequencies, fixed, for the model's head size and row length
lerope,init=preset:english                      learned ones that start there
lerope,horizon=8192    rope,horizon=8192,horizon_share=0.25
                                                trained on positions that skip, up to the horizon, in a share of rows
lerope,horizon=8192,horizon_from=0.9            the same in the last tenth of the steps alone
my_package.encodings:Wavelet,scale=2            an encoding of your own
"""

import ast
import os
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from lerope.core.checks import check_count, check_number, check_rotary_dim, hint
from lerope.core.preset import is_path

Layout = Literal["half", "interleaved"]
Parametrization = Literal["log", "linear", "direct"]
Sharing = Literal["shared", "layer", "head", "layer_head"]

BASE = 10_000.0
FROZEN = "frozen"
"""The method of a run whose frequencies come from a file."""
PRESET = "preset"
RESAMPLE = "resample"
"""The head_dim of a file whose frequencies shall be resampled to the model's."""


@dataclass(frozen=True)
class Family:
    """Encodings that differ only in their options."""

    label: str
    options: dict[str, Any]
    """With their default values."""
    learns: bool = False


_EXACT = 1 << 24
"""Positions up to here are whole numbers in float32 too."""
POSITIONS: dict[str, Any] = {"horizon": None, "horizon_share": 0.5, "horizon_from": 0.0}
"""Options of any encoding that turns, about the positions it is trained on and not about its frequencies."""
FAMILIES = {
    "rope": Family("RoPE", {"base": BASE, "rotary_dim": None, "layout": "half", **POSITIONS}),
    "prope": Family("p-RoPE", {"base": BASE, "p": 0.75, "layout": "half", **POSITIONS}),
    "lerope": Family(
        "LeRoPE",
        {
            "base": BASE,
            "parametrization": "log",
            "sharing": "shared",
            "rotary_dim": None,
            "layout": "half",
            "init": None,
            **POSITIONS,
        },
        learns=True,
    ),
    FROZEN: Family("Frozen", {"head_dim": None, **POSITIONS}),
    PRESET: Family("Preset", POSITIONS),
    "nope": Family("NoPE", {}),
}
# Options in words.
_WORDS = {
    "base": "base {}",
    "p": "p = {}",
    "parametrization": "{}",
    "sharing": "per {}",
    "init": "from {}",
    "head_dim": "{}d",
    "horizon": "positions to {}",
    "horizon_share": "in {} of rows",
    "horizon_from": "from {} of the steps on",
}


@dataclass(frozen=True)
class EncodingSpec:
    """An encoding, however it was spelled: `rope,base=1e4` and `rope` are equal."""

    family: str
    """A name in FAMILIES, or your own `module:name`."""
    options: tuple[tuple[str, Any], ...] = ()
    """Those that differ from their defaults, by name."""
    path: str | None = None
    """The frequencies.json of a frozen one; the name of a preset, or its file."""

    @classmethod
    def parse(cls, text: str) -> "EncodingSpec":
        """Parses a text; raises if it is none of the kinds above or has an option that its family does not take."""
        name, *parts = text.split(",")
        path = None
        if name.startswith(f"{PRESET}:"):
            name, _, path = name.partition(":")
        elif is_path(name):
            name, path = FROZEN, name
        is_one = bool(path) if name == PRESET else name in FAMILIES or all(name.partition(":"))
        if not is_one:
            known = [each for each in FAMILIES if each not in (FROZEN, PRESET)]
            end = hint(text, [",".join([each, *parts]) for each in known])
            raise ValueError(
                f"encoding must be {', '.join(known)}, preset:NAME, a frequencies.json or module:name of your own; "
                f"got {text!r}{end}"
            )
        options = _options(parts, text)
        _check_horizon(options, text)
        if name in FAMILIES:
            usual = FAMILIES[name].options
            for option in options:
                if option not in usual:
                    takes = f"{name} takes {', '.join(usual) or 'none'}{hint(option, usual)}"
                    raise ValueError(f"encoding {text!r}: option {option!r} is unknown; {takes}")
                if isinstance(usual[option], float):
                    check_number(f"encoding {text!r}: {option}", options[option])
            _check_sources(options, text)
            options = {option: value for option, value in options.items() if value != usual[option]}
        return cls(name, tuple(sorted(options.items())), path)

    @property
    def text(self) -> str:
        """Its one spelling in files."""
        first = self.family if self.path is None else f"{PRESET}:{self.path}" if self.family == PRESET else self.path
        return _joined(first, self.options)

    @property
    def method(self) -> str:
        """Its name in comparisons; `frozen` or `preset:NAME`, wherever the file is."""
        first = f"{PRESET}:{source_name(self.path)}" if self.family == PRESET and self.path else self.family
        return _joined(first, tuple((option, _named(value)) for option, value in self.options))

    @property
    def label(self) -> str:
        """Its name in words."""
        known = FAMILIES.get(self.family)
        words = [known.label if known else self.family.rpartition(":")[2]]
        if self.family == PRESET and self.path:
            words = [f"{words[0]} {source_name(self.path)}"]
        for option, value in ((option, _named(value)) for option, value in self.options):
            whole = isinstance(value, int | float) and float(value).is_integer()
            shown = f"{int(value):,}" if whole else str(value)
            shown = shown.replace(":", " ") if option == "init" else shown.replace("_", " and ")
            words.append(_WORDS.get(option, f"{option} {{}}").format(shown))
        return ", ".join(words)

    @property
    def name(self) -> str:
        """Its name in folder names: lerope-sharinglayer, frozen-52M-lerope-42."""
        extras = [f"{option}{_spelled(_named(value))}".replace(":", "-") for option, value in self.options]
        source = [] if self.path is None else [source_name(self.path)]
        return "-".join([self.family.rpartition(":")[2], *source, *extras])

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

    @property
    def horizon(self) -> int | None:
        """Training positions skip up to here; None where they do not skip."""
        found: int | None = dict(self.options).get("horizon")
        return found

    @property
    def horizon_share(self) -> float:
        """In this share of rows."""
        return float(dict(self.options).get("horizon_share", POSITIONS["horizon_share"]))

    @property
    def horizon_from(self) -> float:
        """From this share of the steps on."""
        return float(dict(self.options).get("horizon_from", POSITIONS["horizon_from"]))

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
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            options[option] = value
    return options


def _check_sources(options: dict[str, Any], text: str) -> None:
    """Raises unless options that say where frequencies come from are as they must be."""
    init, head_dim = options.get("init"), options.get("head_dim")
    if init is not None and not (isinstance(init, str) and init.startswith(f"{PRESET}:") and init != f"{PRESET}:"):
        raise ValueError(f"encoding {text!r}: init must be preset:NAME or preset:FILE.json; got {init!r}.")
    if head_dim not in (None, RESAMPLE):
        raise ValueError(f"encoding {text!r}: head_dim must be {RESAMPLE}; got {head_dim!r}.")


def _check_horizon(options: dict[str, Any], text: str) -> None:
    """Raises unless positions can skip as options say."""
    horizon = options.get("horizon")
    if horizon is not None and check_count(f"encoding {text!r}: horizon", horizon) > _EXACT:
        raise ValueError(f"encoding {text!r}: horizon must be at most {_EXACT:,}; got {horizon:,}.")
    for name, usual in POSITIONS.items():
        if name == "horizon" or name not in options:
            continue
        if horizon is None:
            raise ValueError(f"encoding {text!r}: {name} needs a horizon; say how far positions skip.")
        value = check_number(f"encoding {text!r}: {name}", options[name])
        # A share of no rows, or from the end on, would be no horizon at all.
        if not (0 < value <= 1 if usual else 0 <= value < 1):
            limits = "above 0 and at most 1" if usual else "at least 0 and below 1"
            raise ValueError(f"encoding {text!r}: {name} must be {limits}; got {value!r}.")


def _joined(first: str, options: tuple[tuple[str, Any], ...]) -> str:
    return ",".join([first, *(f"{option}={_spelled(value)}" for option, value in options)])


def _named(value: Any) -> Any:
    """The value of an option, a preset's file by its name."""
    if isinstance(value, str) and value.startswith(f"{PRESET}:") and is_path(value):
        return f"{PRESET}:{source_name(value.partition(':')[2])}"
    return value


def _spelled(value: Any) -> str:
    """A value as `_options` reads it back."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return str(int(value))
    return str(value)


def source_name(file: str | os.PathLike[str]) -> str:
    """The name for a frequencies.json, that of its run if it is in one, or for a preset."""
    path = PurePath(file)
    if path.parts[-2:] == ("model", "frequencies.json") and len(path.parts) > 2:
        return path.parts[-3]
    return path.stem if is_path(path.name) else path.name
