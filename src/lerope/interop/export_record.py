"""export.json: what an exported folder says about itself."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lerope.core.files import read_json, sha256_of, write_json
from lerope.rotary.extension import Method

EXPORT = "export.json"
GGUF = "model.gguf"
Format = Literal["hf", "gguf"]
_AGAIN = "export the model again"
# Files whose damage no reader would see: of text that people may edit, each reader checks what it needs.
_HASHED = ("*.safetensors", "*.gguf", "*.model")


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """What was asked for, what was made and where the model comes from."""

    kind: Literal["ladder", "converted"]
    format: Format
    dtype: Literal["float32", "float64", "bfloat16", "float16"]
    attention_factor: float | None
    """What cosines and sines are multiplied by; None where kinds of layers differ in it."""
    logit_scale: float
    train_length: int
    length: int | None
    method: Method
    temperature: float | None
    dominant_band: int | None
    run: dict[str, Any] | None
    """`Run.label` of a ladder model."""
    sha256: dict[str, str]
    """Of each file of weights, and of the tokenizer's."""
    provenance: dict[str, Any]

    def __post_init__(self) -> None:
        if self.length is not None and self.temperature is None:
            raise ValueError("temperature is missing, but length says that frequencies were extended")

    def save(self, folder: Path) -> None:
        """Writes the file."""
        write_json(folder / EXPORT, self)

    def check_files(self, folder: Path) -> None:
        """Raises unless weights and tokenizer are those that were exported."""
        for name, wanted in self.sha256.items():
            try:
                found = sha256_of(folder / name)
            except OSError as error:
                raise ValueError(f"{folder / name} cannot be read ({error.strerror}); {_AGAIN}.") from None
            if found != wanted:
                raise ValueError(f"{folder / name} is not what was exported, it was changed or damaged; {_AGAIN}.")


def read_export(folder: Path) -> ExportRecord:
    """What export.json says about an exported folder."""
    if not (folder / EXPORT).exists():
        raise ValueError(f"{folder} must be a folder that lerope.export wrote; it has no {EXPORT}.")
    return read_json(folder / EXPORT, ExportRecord, _AGAIN)


def hashes(folder: Path) -> dict[str, str]:
    """The hashes that a record keeps."""
    return {path.name: sha256_of(path) for pattern in _HASHED for path in sorted(folder.glob(pattern))}
