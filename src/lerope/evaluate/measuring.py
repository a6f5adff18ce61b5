"""One frame for every measurement of a run: one process at a time, nothing measured twice or lost when stopped."""

import glob
import hashlib
import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lerope.core.locks import locked
from lerope.evaluate.work import Work
from lerope.results import Arrays, RunResult
from lerope.train.parallel import Ranks
from lerope.train.rundir import provenance

Kind = TypeVar("Kind", bound=RunResult)
Finish = Callable[[], tuple[Kind, Arrays]]
"""What the main rank does once all ranks have measured: the result, and the arrays that go beside it."""


@dataclass(frozen=True)
class Measurement(Generic[Kind]):
    """What is measured, on what, and which file it ends up in."""

    kind: type[Kind]
    file: Path
    label: dict[str, Any]
    """`Run.label`, or what stands for it."""
    settings: dict[str, Any]
    ranks: Ranks

    def carry_out(self, measure: Callable[[], Finish[Kind]], known: Callable[[], Kind | None] | None = None) -> Kind:
        """The result: an earlier call's, or what `measure` comes to. Every rank calls this.

        Args:
            measure: runs on every rank; what it returns is called only on the main one.
            known: finds an earlier result, instead of `saved`.
        """
        with ExitStack() as held:
            self.ranks.on_main(lambda: held.enter_context(locked(self.file.parent)))
            found = self.ranks.on_main(known or self.saved)
            if found is None:
                finish = measure()
                found = self.ranks.on_main(lambda: self._store(*finish()))
            self.ranks.on_main(self._remove_partials)
            return found

    @property
    def common(self) -> dict[str, Any]:
        """What every result says: what was measured, at which request, and by which versions."""
        return {"run": self.label, "settings": self.settings, "provenance": provenance()}

    def saved(self, **other: Any) -> Kind | None:
        """The result of the same request to the same training, if it is there, with the arrays beside it intact.

        Args:
            other: settings that may differ from those of this measurement.
        """
        try:
            found = self.kind.load(self.file)
            found.check_arrays(self.file)
        except ValueError:
            return None
        same = found.settings == {**self.settings, **other} and _training(found.run) == _training(self.label)
        return found if same else None

    def partial(self, part: str = "") -> Path:
        """A file for values so far; its name says of which training, request and part."""
        work = [_training(self.label), self.settings, part]
        digest = hashlib.sha256(json.dumps(work).encode()).hexdigest()[:16]
        return self.file.with_name(f".{self.file.stem}.{digest}.partial")

    def work(self, label: str, part: str = "", batch_tokens: int | None = None) -> Work:
        """A part of what is to be done, or all of it."""
        return Work(ranks=self.ranks, partial=self.partial(part), label=label, batch_tokens=batch_tokens)

    def _store(self, result: Kind, arrays: Arrays) -> Kind:
        return result.save_with(self.file, arrays)

    def _remove_partials(self) -> None:
        for path in self.file.parent.glob(f".{glob.escape(self.file.stem)}.*.partial"):
            path.unlink()


def file_name(kind: str, *words: str) -> str:
    """The name of a result: its kind, and a word for everything unusual."""
    cleaned = (re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-.")[:60] for word in words)
    return "-".join([kind, *filter(None, cleaned)]) + ".json"


def _training(label: dict[str, Any]) -> dict[str, Any]:
    """What a label says about the training itself; a folder may be renamed."""
    return {name: value for name, value in label.items() if name != "name"}
