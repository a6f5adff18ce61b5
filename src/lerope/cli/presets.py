"""lerope presets: list them, look at one, make one from runs."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from tyro.conf import Positional, arg

from lerope.cli.options import File, Json, Runs, Whole
from lerope.cli.tables import new_table
from lerope.core.preset import MAKE, Gain, Preset, preset_names, read_preset, sparkline
from lerope.core.terminal import Console, listed

if TYPE_CHECKING:
    from lerope.core.preset import Resampled


def list_(*, json_: Json = False) -> None:
    """List the presets of this package, each with its log-scales from fast to slow bands and what it is good for.

    Example: lerope presets

    Args:
        json_: Print JSON.
    """
    found = [read_preset(name) for name in preset_names()]
    if json_:
        print(json.dumps([preset.as_dict() for preset in found], indent=1))
        return
    console = Console(soft_wrap=True)
    if not found:
        console.print(f"This package has no presets yet. Make one from your own runs: {MAKE}")
        return
    for preset in found:
        console.print(f"{preset.name}  {sparkline(preset.profiles[0].log_scales)}  {preset.good_for}")
        _show_worth(console, preset)


def show(
    name: Positional[str],
    *,
    head_dim: Whole = None,
    train_length: Whole = None,
    out: File = None,
    json_: Json = False,
) -> None:
    """Draw a preset, say where it comes from, and show what it is for a head size and train length.

    Example: lerope presets show english --head-dim 128 --train-length 4096 --out english.svg

    Args:
        name: of a preset of this package, or the path of a file that `lerope presets make` wrote.
        head_dim: Resample to heads of this size; the preset's own if only a train length is given.
        train_length: Resample to this train length; the preset's first if only a head size is given.
        out: Also draw it here, as .svg, .png or .pdf.
        json_: Print JSON, with the frequencies if resampled.
    """
    preset = read_preset(name)
    resampled = None
    if head_dim is not None or train_length is not None:
        resampled = preset.resample(
            preset.head_dim if head_dim is None else head_dim,
            preset.profiles[0].train_length if train_length is None else train_length,
        )
    if out is not None:
        from lerope.report.figures.preset import draw
        from lerope.report.style import save_as

        save_as(draw(preset, resampled), out)
    if json_:
        content = preset.as_dict()
        print(json.dumps({**content, "resampled": asdict(resampled)} if resampled else content, indent=1))
        return
    console = Console(soft_wrap=True)
    _show_provenance(console, preset)
    console.print(_measured(preset) if resampled is None else _for_model(preset, resampled))
    for note in resampled.notes if resampled else ():
        console.print(f"note: {note}")
    if out is not None:
        console.print(f"drawn: {out}")


def make(
    runs: Runs,
    *,
    name: str,
    out: Path = Path("."),
    good_for: Annotated[str | None, arg(metavar="SENTENCE", help_behavior_hint="")] = None,
    held_out: Annotated[tuple[Path, ...], arg(metavar="RUN...", help_behavior_hint="")] = (),
    json_: Json = False,
) -> None:
    """Make a preset from finished runs: the mean of what LeRoPE runs learned, at each train length.

    Example: lerope presets make runs/52M-lerope-4* --name mine

    Args:
        runs: Run directories of LeRoPE: several seeds give the spread, several row lengths are kept apart. With runs of
            rope, and of frozen frequencies or the preset before, all evaluated, it says what it is worth.
        name: What to call it; the file is OUT/NAME.json, and one that is there gets the next version.
        out: The folder to write to.
        good_for: What it is good for, in one sentence.
        held_out: Runs that say what it is worth and do not go into it, of rope, lerope and the preset before: other
            seeds, row lengths, head sizes or texts.
        json_: Print what the file says, and notes.
    """
    from lerope.scaling.presets import make_preset

    path = out / f"{name}.json"
    version = read_preset(path).version + 1 if path.exists() else 1
    made = make_preset(runs, name, good_for, held_out, version)
    out.mkdir(parents=True, exist_ok=True)
    made.preset.save(path)
    if json_:
        print(json.dumps({**made.preset.as_dict(), "notes": made.notes}, indent=1))
        return
    console = Console(soft_wrap=True)
    _show_provenance(console, made.preset)
    for note in made.notes:
        console.print(f"note: {note}")
    console.print(f"{path}: train with --encoding preset:{path}")


def _show_provenance(console: Console, preset: Preset) -> None:
    console.print(f"{preset.name}, version {preset.version}, {preset.fingerprint()[:12]}: {preset.good_for}")
    for profile in preset.profiles:
        steps = ", ".join(f"{steps:,}" for steps in profile.steps)
        made_of = f"{', '.join(profile.rungs)}, seeds {', '.join(map(str, profile.seeds))}, {steps} steps"
        console.print(f"  {sparkline(profile.log_scales)}  train length {profile.train_length:,}: {made_of}")
    where = listed(preset.text) or "not said"
    tokenizer = (preset.tokenizer or "not said")[:12]
    console.print(f"  text {where}; tokenizer {tokenizer}, vocabulary {preset.vocab_size:,}; base {preset.base:g}")
    _show_worth(console, preset)


def _show_worth(console: Console, preset: Preset) -> None:
    for gain in preset.gains:
        console.print(f"  {_worth(gain)}")
    if not preset.gains:
        console.print("  its gain is not measured")


def _worth(gain: Gain) -> str:
    seeds = f"seed{'s' * (len(gain.seeds) > 1)} {', '.join(map(str, gain.seeds))}"
    where = f"{gain.rung}, train length {gain.train_length:,}, head_dim {gain.head_dim}, {listed(gain.text)}, {seeds}"
    where += ", held out" if gain.held_out else ", its own runs"
    kept = "what fixed ones keep is not measured"
    if gain.captured is not None:
        kept = f"{gain.method} keeps {gain.captured:.1%} of it"
    return f"{where}: learned frequencies gain {gain.gain:.4f} nats, {kept}"


def _measured(preset: Preset) -> Table:
    """Wavelengths as they were learned."""
    lengths = [f"at {profile.train_length:,}" for profile in preset.profiles]
    table = new_table("band", "u", "RoPE's", *(cell for length in lengths for cell in (length, "spread")), text=())
    num_bands = preset.head_dim // 2
    for band in range(num_bands):
        rope = 2 * math.pi * preset.base ** (band / num_bands)
        cells = [str(band), f"{band / num_bands:.3f}", _tokens(rope)]
        for profile in preset.profiles:
            spread = "" if profile.spread is None else f"±{math.expm1(profile.spread[band]):.1%}"
            cells += [_tokens(rope * math.exp(-profile.log_scales[band])), spread]
        table.add_row(*cells)
    return table


def _for_model(preset: Preset, resampled: "Resampled") -> Table:
    """Wavelengths as a model gets them."""
    table = new_table("band", "u", "RoPE's", f"at {resampled.train_length:,}", "turns", text=())
    num_bands = len(resampled.frequencies)
    for band, frequency in enumerate(resampled.frequencies):
        rope, own = 2 * math.pi * preset.base ** (band / num_bands), 2 * math.pi / frequency
        turns = f"{resampled.train_length / own:.3g}"
        table.add_row(str(band), f"{band / num_bands:.3f}", _tokens(rope), _tokens(own), turns)
    return table


def _tokens(wavelength: float) -> str:
    return f"{wavelength:.2f}" if wavelength < 100 else f"{wavelength:,.0f}"


COMMAND = {"list": list_, "show": show, "make": make}
USUAL = "list"
"""What `lerope presets` alone does."""
