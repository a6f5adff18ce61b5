"""The run directory: its file names, what run.json says, and the records of training.

run.json  metrics.jsonl  frequencies.jsonl  checkpoints/  model/  results/
"""

import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

import lerope
from lerope.core.encoding import EncodingSpec
from lerope.core.files import read_json, read_lines, sha256_of, write_json
from lerope.core.recipe import Recipe

RUN = "run.json"
# What a run leaves whose loss was no number; gone once it is trained again.
DIVERGED = "diverged.json"
METRICS, HISTORY = "metrics.jsonl", "frequencies.jsonl"
CHECKPOINTS, MODEL, PROFILE, RESULTS = "checkpoints", "model", "profile", "results"
# In the folder `model`.
CONFIG, WEIGHTS, FREQUENCIES, TOKENIZER = "config.json", "model.safetensors", "frequencies.json", "tokenizer.model"

VERSION = 2
_FIX = "restore it, or train in another folder"

Kind = TypeVar("Kind")
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
"""Of steps and tokens: no more than any tool that reads JSON can count to."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What determines a run's result; the same at every start."""

    recipe: Recipe
    data: str
    """The fingerprint of the corpus."""
    initial_frequencies: str
    """The fingerprint of the encoding's initial frequencies."""
    initial_weights: str | None = None
    """The SHA-256 of the weights that the run starts from; None where they follow from the seed."""

    def as_dict(self) -> dict[str, Any]:
        """All of it, as it was before runs could start from others, unless this one does."""
        content = asdict(self)
        if self.initial_weights is None:
            del content["initial_weights"], content["recipe"]["start_from"], content["recipe"]["learn"]
        return content


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a run; everything here may differ between starts."""

    date: str
    lerope: str
    commit: str | None
    python: str
    platform: str
    torch: str
    gpu: str | None
    num_threads: int
    command: str
    """What to run to continue."""
    data: str
    """The folder of the corpus."""
    sources: list[str]
    """The sources of its text, as given to `lerope data prepare`."""
    code_share: float
    """How much of the training text is source code."""
    setup: dict[str, Any]
    num_ranks: int
    device: str
    micro_batch_rows: int
    num_data_tokens: int | None = None
    """Tokens of its training split, to tell how often the run reads it; None in runs from before this was recorded."""


@dataclass(frozen=True, kw_only=True)
class _RunFile:
    version: int
    identity: Identity
    finished: bool
    created: str
    starts: list[Start]
    model_sha256: dict[str, str]

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version must be {VERSION}, got {self.version}")


@dataclass(frozen=True)
class Run:
    """A run directory."""

    path: Path
    identity: Identity
    finished: bool
    created: str
    """When; tells apart runs of one recipe."""
    starts: list[Start]
    model_sha256: dict[str, str] = field(default_factory=dict)
    """The hashes of the finished model's files."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def recipe(self) -> Recipe:
        """What was trained."""
        return self.identity.recipe

    @property
    def model(self) -> Path:
        """The folder of the finished model."""
        return self.path / MODEL

    @property
    def results(self) -> Path:
        """The folder of what was measured."""
        return self.path / RESULTS

    @property
    def label(self) -> dict[str, Any]:
        """What a result file says about its run."""
        # Through JSON and back, so that it equals what a file says.
        return {"name": self.name, "created": self.created, **json.loads(json.dumps(self.identity.as_dict()))}

    @property
    def digest(self) -> str:
        """A hash that identifies this training, wherever its folder is."""
        return hashlib.sha256(json.dumps([self.created, self.identity.as_dict()]).encode()).hexdigest()

    def check_model(self, *names: str) -> None:
        """Raises unless these model files are the ones training ended with."""
        for name in names:
            wanted, file = self.model_sha256.get(name), self.model / name
            if wanted is not None and not file.is_file():
                raise ValueError(f"{file} is missing, although this run finished with it; {_FIX}.")
            if wanted is not None and sha256_of(file) != wanted:
                raise ValueError(
                    f"{file} is not what this run finished with: it was changed or belongs to another run; {_FIX}."
                )

    def save(self) -> None:
        """Writes run.json."""
        content = asdict(self)
        del content["path"]
        write_json(self.path / RUN, {"version": VERSION, **content})


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory, be it one whose run.json cannot be read, such as a link to nothing."""
    return os.path.lexists(path / RUN)


def read_run(path: str | os.PathLike[str]) -> Run:
    """Reads run.json; any problem raises one ValueError."""
    folder = Path(path)
    if not (folder / RUN).exists():
        raise ValueError(f"{folder / RUN} does not exist; name a folder that `lerope train` wrote.")
    found = read_json(folder / RUN, _RunFile, _FIX, _upgrade)
    return Run(folder, found.identity, found.finished, found.created, found.starts, found.model_sha256)


def finished_run(path: str | os.PathLike[str]) -> Run:
    """The same for a run that must be finished."""
    run = read_run(path)
    if not run.finished:
        command = run.starts[-1].command if run.starts else "lerope train"
        raise ValueError(f"{run.path} is not finished; continue with: {command}")
    return run


def _upgrade(content: Any) -> None:
    """The first version had no number and no hashes, did not record its sources, omitted a z-loss of 0, read rows in
    document order, and kept encodings as they were spelled."""
    if not isinstance(content, dict) or "version" in content or "model_sha256" in content:
        return
    content.update(version=VERSION, model_sha256={})
    for start in content["starts"] if isinstance(content.get("starts"), list) else []:
        if isinstance(start, dict):
            start.update({"sources": [], "code_share": 0.0})
    identity = content.get("identity")
    recipe = identity.get("recipe") if isinstance(identity, dict) else None
    if isinstance(recipe, dict):
        recipe.setdefault("z_loss", 0.0)
        recipe.setdefault("row_order", "documents")
        with suppress(ValueError, AttributeError, KeyError):  # what is no encoding is said later
            recipe["encoding"] = EncodingSpec.parse(recipe["encoding"]).text


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """A line of metrics.jsonl for each step."""

    step: Count
    """Steps finished."""
    tokens: Count
    loss: float
    learning_rate: float
    gradient_norm: float
    frequency_gradient_norm: float | None
    """None if no frequency is learned."""
    seconds: float
    wait_seconds: float
    """How long the model waited for the batch."""
    tokens_per_second: float
    share_of_peak: float | None
    """FLOP/s divided by the GPU's dense bfloat16 peak, if known."""


@dataclass(frozen=True, kw_only=True)
class ValidationRecord:
    """A line of metrics.jsonl for each validation."""

    step: Count
    validation_loss: float
    validation_tokens: Count


@dataclass(frozen=True, kw_only=True)
class FrequencyRecord:
    """A line of frequencies.jsonl: log-scales if they suffice, else frequencies."""

    step: Count
    log_scales: list[Any] | None = None
    """ln(frequency / RoPE's), nested by layer and head if these have their own; None where undefined."""
    frequencies: list[Any] | None = None
    """None if log-scales suffice."""

    def __post_init__(self) -> None:
        if not (_is_numeric(self.log_scales, True) and _is_numeric(self.frequencies, False)):
            raise ValueError("log_scales and frequencies must be nested lists of numbers")

    def values(self, rope: Sequence[float] | None) -> list[Any] | None:
        """The frequencies, nested; None if the record does not give them.

        Args:
            rope: RoPE's frequencies, to which log-scales are relative.
        """
        if self.frequencies is not None or self.log_scales is None or rope is None:
            return self.frequencies
        try:
            return _scaled(self.log_scales, rope)
        except (TypeError, ValueError, OverflowError):  # different bands
            return None


def _is_numeric(values: Any, gaps: bool) -> bool:
    """Whether these are nested lists of numbers, or None; with gaps, some may be missing."""
    if isinstance(values, list):
        return all(_is_numeric(value, gaps) and (gaps or value is not None) for value in values)
    return values is None or (isinstance(values, int | float) and not isinstance(values, bool))


def _scaled(log_scales: list[Any], rope: Sequence[float]) -> list[Any]:
    if log_scales and isinstance(log_scales[0], list):
        return [_scaled(inner, rope) for inner in log_scales]
    return [math.nan if x is None else theta * math.exp(x) for x, theta in zip(log_scales, rope, strict=True)]


@dataclass(frozen=True)
class Metrics:
    """The records of a run."""

    steps: list[StepRecord]
    validations: list[ValidationRecord]
    num_damaged: int
    """Unreadable lines."""

    @property
    def validation_loss(self) -> float | None:
        """The newest."""
        return self.validations[-1].validation_loss if self.validations else None


def read_metrics(run: Path) -> Metrics:
    """The records of a run directory; damaged lines are skipped."""
    found = Metrics([], [], 0)
    num_damaged = 0
    for record in read_lines(run / METRICS):
        is_validation = record is not None and "validation_loss" in record
        if (validation := _typed(record, ValidationRecord)) is not None and is_validation:
            found.validations.append(validation)
        elif (step := _typed(record, StepRecord)) is not None and not is_validation:
            found.steps.append(step)
        else:
            num_damaged += 1
    return Metrics(found.steps, found.validations, num_damaged)


def read_history(run: Path) -> list[FrequencyRecord]:
    """A run's frequency records, without damaged ones; a single one if the encoding does not learn."""
    records = (_typed(record, FrequencyRecord) for record in read_lines(run / HISTORY))
    return [record for record in records if record is not None]


def _typed(record: dict[str, Any] | None, kind: type[Kind]) -> Kind | None:
    try:
        return None if record is None else msgspec.convert(record, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def provenance() -> dict[str, Any]:
    """Date, versions and commit: what a reader needs to trace numbers."""
    return {
        "date": now(),
        "lerope": lerope.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def now() -> str:
    """The UTC time, fine enough to tell apart two runs of one recipe that were created one after the other."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _commit() -> str | None:
    """The commit of lerope's own source, followed by `+` if files have changed; None outside a checkout."""
    folder = os.path.dirname(lerope.__file__)

    def git(*args: str) -> str:
        command = ["git", "-C", folder, *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # An installed copy may be inside someone else's checkout.
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
