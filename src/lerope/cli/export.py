"""lerope export RUN OUT: a run as files for serving engines."""

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lerope.cli.options import File, Json, Whole
from lerope.cli.tables import new_table
from lerope.core.terminal import Console
from lerope.interop.export_hf import Dtype
from lerope.interop.export_record import Format
from lerope.rotary.extension import Method


def export(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    out: Annotated[Positional[Path], arg(metavar="OUT")],
    *,
    format: Format = "hf",
    length: Whole = None,
    method: Method = "yarn",
    temperature: float = 0.1,
    dominant_band: Whole = None,
    dtype: Dtype = "float32",
    tokenizer: File = None,
    json_: Json = False,
) -> None:
    """Write a finished run for transformers, vLLM, SGLang, mlx-lm, TensorRT-LLM, or for llama.cpp.

    Example: lerope export runs/52M-lerope-42 served/52M

    For llama.cpp: lerope export runs/52M-lerope-42 served/52M-gguf --format gguf

    With YaRN to four times the train length: lerope export runs/52M-lerope-42 served/52M-8k --length 8192

    Args:
        run: a finished run's directory.
        out: a new or empty folder.
        format: hf for a Hugging Face folder, gguf for llama.cpp.
        length: Bake in an extension to this many tokens.
        method: How to extend.
        temperature: Of yarn, slow_bands, dominant_band: logits scale by (temperature ln(length / train length) + 1)^2.
        dominant_band: The band that method dominant_band slows.
        dtype: The weights' dtype.
        tokenizer: A SentencePiece .model file in place of the run's own.
        json_: Print JSON.
    """
    from lerope.interop.export_hf import export as carry_out
    from lerope.interop.export_record import read_export

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        carry_out(
            run,
            out,
            format,
            length=length,
            method=method,
            temperature=temperature,
            dominant_band=dominant_band,
            dtype=dtype,
            tokenizer=tokenizer,
        )
    notes = [str(warning.message) for warning in caught if warning.category is UserWarning]
    record = read_export(out)
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    if json_:
        print(json.dumps({"directory": str(out), **asdict(record), "files": sizes, "notes": notes}, indent=1))
        return
    console = Console()
    table = new_table("file", "bytes")
    for name, size in sizes.items():
        table.add_row(name, f"{size:,}")
    console.print(table)
    for note in notes:
        console.print(f"note: {note}")
    console.print(f"Check it with: lerope verify {out} --run {run}", soft_wrap=True)


COMMAND = export
