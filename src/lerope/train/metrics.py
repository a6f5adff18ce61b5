"""Records of a run: always as lines of JSON, on request in a tracker, and as words for people."""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from lerope.data.display import duration
from lerope.runs import FREQUENCIES, METRICS, read_run
from lerope.train.config import Tracker


class Records:
    """Appends to metrics.jsonl and frequencies.jsonl, and passes metrics on to trackers."""

    def __init__(
        self, path: Path, trackers: tuple[Tracker, ...], name: str, config: dict[str, Any], first: int = 0
    ) -> None:
        """Opens everything.

        Args:
            first: the step that a run goes on from.
        """
        self._sinks = {tracker: _open(tracker, path, name, config, first) for tracker in trackers}
        self._files = {kind: (path / kind).open("a", encoding="utf-8") for kind in (METRICS, FREQUENCIES)}

    def metrics(self, record: dict[str, Any]) -> None:
        """One line of metrics; `step` counts finished steps."""
        self._append(METRICS, record)
        values = {key: value for key, value in record.items() if key != "step" and value is not None}
        self._log(values, record["step"])

    def _log(self, values: dict[str, float], step: int) -> None:
        for tracker, sink in list(self._sinks.items()):
            try:
                sink.log(values, step)
            except Exception as error:  # whatever a service does, training goes on
                warnings.warn(f"{tracker} stopped taking metrics ({error}); they go on in {METRICS}.", stacklevel=2)
                del self._sinks[tracker]

    def frequencies(self, record: dict[str, Any]) -> None:
        """One line of frequencies."""
        self._append(FREQUENCIES, record)
        scales = record.get("log_scales") or []
        if all(isinstance(scale, float) for scale in scales):
            self._log({f"log_scales/{band:02d}": scale for band, scale in enumerate(scales)}, record["step"])

    def sync(self) -> None:
        """Returns when everything has reached the disk."""
        for file in self._files.values():
            os.fsync(file.fileno())

    def close(self) -> None:
        """Closes files and trackers."""
        for file in self._files.values():
            file.close()
        for sink in self._sinks.values():
            sink.close()

    def _append(self, kind: str, record: dict[str, Any]) -> None:
        file = self._files[kind]
        file.write(json.dumps(record) + "\n")
        file.flush()


class Sink(Protocol):
    """What a tracker has to do."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Takes the metrics of a step."""

    def close(self) -> None:
        """Says that the run has ended."""


class _TensorBoard:
    def __init__(self, path: Path, name: str, config: dict[str, Any], first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=first + 1)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class _Hosted:
    """Weights & Biases, and Trackio, which has the same interface."""

    package: str

    def __init__(self, path: Path, name: str, config: dict[str, Any], first: int) -> None:
        module = __import__(self.package)
        self._run = module.init(project="lerope", name=name, config=config, resume="allow", **self.options(path))

    def options(self, path: Path) -> dict[str, str]:
        """What else tells the service that a run goes on."""
        return {}

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class _WandB(_Hosted):
    package = "wandb"

    def options(self, path: Path) -> dict[str, str]:
        created = read_run(path).created
        return {"id": hashlib.sha256(f"{path.resolve()} {created}".encode()).hexdigest()[:16], "dir": str(path)}


class _Trackio(_Hosted):
    package = "trackio"


_SINKS: dict[str, Any] = {"tensorboard": _TensorBoard, "wandb": _WandB, "trackio": _Trackio}


def _open(tracker: Tracker, path: Path, name: str, config: dict[str, Any], first: int) -> Sink:
    try:
        sink: Sink = _SINKS[tracker](path, name, config, first)
    except ImportError:
        raise ValueError(
            f"trackers: {tracker} is not installed; pip install 'lerope[{tracker}]', or leave it out."
        ) from None
    except Exception as error:
        raise ValueError(f"trackers: {tracker} cannot be started ({error}); mend that, or leave it out.") from None
    return sink


def line(record: dict[str, Any], steps: int, seconds_left: float) -> str:
    """A step's metrics for people."""
    parts = [
        f"step {record['step']:,}/{steps:,}",
        f"loss {record['loss']:.4f}",
        f"lr {record['learning_rate']:.2e}",
        f"norm {record['gradient_norm']:.2f}",
    ]
    if record["frequency_gradient_norm"] is not None:
        parts.append(f"frequency norm {record['frequency_gradient_norm']:.3f}")
    parts.append(f"{readable(record['tokens_per_second'])} tok/s")
    if record["share_of_peak"] is not None:
        parts.append(f"{record['share_of_peak']:.0%} of peak")
    parts.append(f"{duration(seconds_left)} left")
    return "  ".join(parts)


def readable(value: float) -> str:
    """A number with three digits and a unit: 1.43M."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
