"""Checkpoints: torch's distributed checkpoints as safetensors files, in a folder that appears whole or not at all.

`checkpoints/step-00001000/` contains one file for each rank that had something to write, and `checkpoint.json` with
each file's hash, the step, and the run it belongs to. Any number of ranks can load it.
"""

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from torch.optim import Optimizer

from lerope.core.files import put, read_json, sha256_of, write_json
from lerope.train.parallel import Ranks

MARK = "checkpoint.json"
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Mark:
    """The content of `checkpoint.json`."""

    run: str
    """`Run.digest`."""
    step: int
    num_ranks: int
    sha256: dict[str, str]
    """Of each file."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are all present and unchanged."""

    path: Path
    step: int


def prepare_moments(optimizer: Optimizer, step: int) -> None:
    """Gives AdamW the state it would have after `step` steps, with zero moments to load into."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            device = p.device if group["fused"] else "cpu"
            count = torch.tensor(float(step), dtype=torch.float32, device=device)
            optimizer.state[p] = {"step": count, **{name: torch.zeros_like(p) for name in MOMENTS}}


def training_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The tensors that training resumes from, by name; they are the model's and the optimizer's own."""
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, p in model.named_parameters():
        if p in optimizer.state:
            state |= {f"{moment}.{name}": optimizer.state[p][moment] for moment in MOMENTS}
    return state


@dataclass(frozen=True)
class Store:
    """A run's checkpoints; every rank must call its methods."""

    folder: Path
    run: str
    """`Run.digest`: checkpoints of other runs are rejected."""
    ranks: Ranks
    keep: int
    """How many of the newest to keep."""

    def save(self, step: int, state: dict[str, Tensor]) -> None:
        """Writes a checkpoint, then removes old ones."""
        ranks, folder = self.ranks, self.folder
        path, partial = folder / f"step-{step:08d}", folder / f".saving-{step:08d}"
        ranks.on_main(lambda: _clear(partial))
        try:
            with _alone():
                writer = HuggingFaceStorageWriter(str(partial), save_distributed=True)
                save_distributed(state, storage_writer=writer, no_dist=not dist.is_initialized())
        except (OSError, CheckpointException) as error:
            raise OSError(_reason(error)) from None
        names = ranks.on_main(lambda: sorted(file.name for file in partial.glob("*.safetensors")))
        mark = Mark(self.run, step, ranks.num_ranks, _hashes(partial, names, ranks))

        def commit() -> None:
            write_json(partial / MARK, mark)
            put(partial, path)
            for old in _steps(folder)[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)

        ranks.on_main(commit)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest intact checkpoint, and a sentence about each newer damaged one, which is put aside."""
        complaints: list[str] = []
        for path in reversed(self.ranks.on_main(lambda: _steps(self.folder))):
            step = int(path.name.rpartition("-")[2])
            problem = self._problem(path, step)
            if problem is None:
                return Checkpoint(path, step), complaints
            aside = path.with_name(f"damaged-{path.name}")
            self.ranks.on_main(lambda path=path, aside=aside: _put_aside(path, aside))  # type: ignore[misc]
            complaints.append(f"{path} is damaged ({problem}) and was skipped; it is now {aside.name}.")
        return None, complaints

    def _problem(self, path: Path, step: int) -> str | None:
        """The problem with a checkpoint, if any; ranks share the hashing."""
        mark = self.ranks.on_main(lambda: _read_mark(path))
        if mark is None:
            return f"{MARK} is missing or incomplete"
        if mark.run != self.run:
            return "it belongs to another run"
        if mark.step != step:
            return f"it is from step {mark.step:,}"
        found = _hashes(path, sorted(mark.sha256), self.ranks)
        for name, expected in mark.sha256.items():
            if name not in found:
                return f"{name} is missing"
            if found[name] != expected:
                return f"{name} has changed"
        return None


def load(checkpoint: Checkpoint, state: dict[str, Tensor]) -> None:
    """Fills the tensors of `state` in place; every rank must call this."""
    reader = HuggingFaceStorageReader(str(checkpoint.path))
    try:
        with _alone():
            load_distributed(state, storage_reader=reader, no_dist=not dist.is_initialized())
    except (ValueError, RuntimeError, CheckpointException) as error:
        raise ValueError(f"{checkpoint.path} does not fit this run: {_reason(error)}.") from None


def _steps(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"step-{'[0-9]' * 8}") if path.is_dir())


def _put_aside(path: Path, aside: Path) -> None:
    """A damaged checkpoint must not count as one of the newest when old ones are removed."""
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)


def _clear(partial: Path) -> None:
    """Removes what an earlier process may have left unfinished, for this and other steps."""
    for path in partial.parent.glob(".saving-*"):
        shutil.rmtree(path, ignore_errors=True)
    partial.mkdir(parents=True)


def _hashes(path: Path, names: list[str], ranks: Ranks) -> dict[str, str]:
    """The hashes of files, each computed by one rank; missing files are left out."""
    mine = [name for name in names[ranks.rank :: ranks.num_ranks] if (path / name).is_file()]
    found: dict[str, str] = {}
    for part in ranks.gather({name: sha256_of(path / name) for name in mine}):
        found |= part
    return found


def _read_mark(path: Path) -> Mark | None:
    try:
        return read_json(path / MARK, Mark, "")
    except ValueError:
        return None


@contextmanager
def _alone() -> Iterator[None]:
    """Suppresses the warning that there is only one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _reason(error: BaseException) -> str:
    """The innermost cause, without torch's list of ranks and tracebacks."""
    failures = getattr(error, "failures", None)
    if failures:
        return _reason(next(iter(failures.values()))[0])
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
