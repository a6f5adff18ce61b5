"""What every result file has, how it is read and written, and the arrays beside it."""

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import msgspec

from lerope.core.files import parse_json, read_bytes, sha256_of, whole, write_json

VERSION = 2
_AGAIN = "make it again with the command that wrote it"

if TYPE_CHECKING:
    import numpy.typing as npt

Count = Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
Arrays = Mapping[str, "npt.NDArray[Any]"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What every result has."""

    kind: ClassVar[str]
    settings_read: ClassVar[dict[str, Any]] = {}
    """The settings that something reads, with their types; those whose type includes None may be missing."""

    settings: dict[str, Any]
    """What was requested; results are comparable where these are equal."""
    provenance: dict[str, Any]
    """See `lerope.core.run.provenance`."""

    def as_dict(self) -> dict[str, Any]:
        """What the file says."""
        return {"kind": self.kind, "version": VERSION, **asdict(self)}

    def save(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, self.as_dict())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file back; anything wrong with it raises one ValueError."""

        def take(content: Any) -> None:
            if isinstance(content, dict):
                found = content.pop("kind", None), content.pop("version", None)
                if found != (cls.kind, VERSION):
                    wanted = f"{cls.kind}, {VERSION}"
                    raise ValueError(f"kind and version must be {wanted}, got {found[0]}, {found[1]}")
                for field in fields(cls):
                    if field.name not in content:
                        raise ValueError(f"{field.name} is missing")
                _check_known("settings", content["settings"], cls.settings_read)
                _check_known("run", content.get("run"), {"name": str})

        return parse_json(read_bytes(path, _AGAIN), cls, str(path), _AGAIN, take)


@dataclass(frozen=True, kw_only=True)
class RunResult(Result):
    """A result about one run, in its folder `results`."""

    run: dict[str, Any]
    """`Run.label`: name, creation time, recipe, fingerprints of data and initial frequencies."""
    arrays_sha256: str | None = None
    """The hash of the file beside it, where there is one."""

    def save_with(self, path: Path, arrays: Arrays) -> Self:
        """Writes the arrays beside the result, then the result; returns it with their hash."""
        import numpy as np
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        path.parent.mkdir(parents=True, exist_ok=True)
        target = arrays_of(path)
        try:
            with whole(target) as partial:
                save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, partial)
        except SafetensorError as error:
            raise OSError(str(error)) from None
        found = replace(self, arrays_sha256=sha256_of(target))
        found.save(path)
        return found

    def check_arrays(self, path: Path) -> None:
        """Raises unless the arrays beside the result are those it was saved with."""
        file = arrays_of(path)
        if not file.is_file():
            raise ValueError(f"{file} does not exist; {_AGAIN}.")
        status = file.stat()
        if _hashed(file, status.st_size, status.st_mtime_ns) != self.arrays_sha256:
            raise ValueError(f"{file} does not match {path.name}, so it was changed or damaged; {_AGAIN}.")

    @contextmanager
    def open_arrays(self, path: Path, *names: str) -> Iterator[Any]:
        """The arrays beside the result, after a check that they are intact and have these names.

        Yields safetensors' `safe_open`, which reads parts of arrays without the rest.
        """
        from safetensors import SafetensorError, safe_open

        self.check_arrays(path)
        try:
            with safe_open(arrays_of(path), "numpy") as file:
                missing = sorted(set(names) - set(file.keys()))
                if missing:
                    raise ValueError(f"{arrays_of(path)} has no {' and no '.join(missing)}; {_AGAIN}.")
                yield file
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{arrays_of(path)} cannot be read ({error}); {_AGAIN}.") from None


def _check_known(field: str, content: Any, known: dict[str, Any]) -> None:
    """Raises unless what something reads of an open field is there, of its type."""
    for name, hint in known.items() if isinstance(content, dict) else ():
        try:
            msgspec.convert(content.get(name), hint)
        except msgspec.ValidationError as error:
            raise ValueError(f"{field}.{name} is not as it must be ({str(error).partition(' - at')[0]})") from None


def arrays_of(path: Path) -> Path:
    """The file beside a result that holds what is too long for JSON."""
    return path.with_suffix(".safetensors")


@functools.lru_cache(maxsize=256)
def _hashed(path: os.PathLike[str], size: int, time: int) -> str:
    """The hash of a file as it is now; a file that is read in many parts is hashed once."""
    return sha256_of(Path(path))
