"""Records of a run: always as JSON lines, optionally in a tracker."""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from lerope.core.extras import install
from lerope.core.recipe import Tracker
from lerope.core.run import HISTORY, METRICS, FrequencyRecord, read_run
from lerope.train.trainer import Hook, Loop, Record


class Records(Hook):
    """Appends to metrics.jsonl and frequencies.jsonl, and passes metrics on to trackers; only on the main rank."""

    def __init__(
        self, path: Path, trackers: tuple[Tracker, ...], name: str, config: dict[str, Any], first: int = 0
    ) -> None:
        """Opens everything.

        Args:
            first: the step that a run continues from.
        """
        self._sinks = {tracker: _open(tracker, path, name, config, first) for tracker in trackers}
        self._files = {kind: (path / kind).open("a", encoding="utf-8") for kind in (METRICS, HISTORY)}

    def take(self, loop: Loop, record: Record) -> None:
        file = self._files[HISTORY if isinstance(record, FrequencyRecord) else METRICS]
        file.write(json.dumps(vars(record), allow_nan=False) + "\n")
        file.flush()
        values = _values(record)
        for tracker, sink in list(self._sinks.items()) if values else []:
            try:
                sink.log(values, record.step)
            except Exception as error:  # whatever a service does, training continues
                warnings.warn(f"{tracker} stopped taking metrics ({error}); they are still in {METRICS}.", stacklevel=2)
                del self._sinks[tracker]

    def sync(self) -> None:
        for file in self._files.values():
            os.fsync(file.fileno())

    def end(self, loop: Loop) -> None:
        for file in self._files.values():
            file.close()
        for sink in self._sinks.values():
            sink.close()


def _values(record: Record) -> dict[str, float]:
    """What a tracker shows of a record; for frequencies, the log-scales if layers and heads share one set."""
    if isinstance(record, FrequencyRecord):
        scales = record.log_scales or []
        shared = all(isinstance(scale, float) for scale in scales)
        return {f"log_scales/{band:02d}": scale for band, scale in enumerate(scales)} if shared else {}
    return {key: value for key, value in vars(record).items() if key != "step" and value is not None}


class Sink(Protocol):
    """The interface of a tracker."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Takes the metrics of a step."""

    def close(self) -> None:
        """Marks the end of the run."""


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
        """What else tells the service that a run is resumed."""
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
        raise ValueError(f"trackers: {tracker} is not installed; run {install(tracker)} or omit it.") from None
    except Exception as error:
        raise ValueError(f"trackers: {tracker} cannot be started ({error}); fix that or omit it.") from None
    return sink
