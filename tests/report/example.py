"""A study as files, without training: runs of three rungs, five methods and three seeds, with every kind of result.

`write_example(folder)` gives the run directories, for `lerope.report.collect.collect`. Numbers are made up and look
like the paper's: one dominant band, slow bands suppressed, LeRoPE ahead by a hundredth of a nat.
"""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lerope.core.recipe import recipe
from lerope.core.run import Identity, Run
from lerope.results import (
    Ablation,
    Bands,
    Beyond,
    Evaluation,
    Extrapolation,
    LearnedFrequencies,
    Needle,
    Phasors,
    RunResult,
    SlowestRemovals,
    Timeline,
    Training,
)
from lerope.results.token_losses import loss_arrays
from tests.made_runs import START

LENGTH = 512
NUM_BANDS = 32
BASE = 10_000.0
LAYERS = {"19M": 3, "52M": 6, "217M": 12}
LEARNING_RATE_INDEX = {"19M": 10, "52M": 13, "217M": 17}
ODD_NAME = "<script>alert(1)<script> & 100%_$x$ #{}~^\\"
"""The name of a run: text for a page, a table and LaTeX to escape."""
TEXT, CODE = "c" * 64, "d" * 64
"""Fingerprints of two corpora."""
LOSSES = {
    ("19M", "rope", 42): 3.912,
    ("19M", "prope,p=0.75", 42): 3.913,
    ("19M", "lerope", 42): 3.899,
    ("52M", "rope", 42): 3.4093,
    ("52M", "rope", 43): 3.4110,
    ("52M", "rope", 44): 3.4101,
    ("52M", "prope,p=0.75", 42): 3.4100,
    ("52M", "rope,base=500000", 42): 3.4049,
    ("52M", "lerope", 42): 3.3995,
    ("52M", "lerope", 43): 3.4004,
    ("52M", "lerope", 44): 3.3989,
    ("52M", "runs/52M-lerope-43/model/frequencies.json", 42): 3.4030,
    ("217M", "rope", 42): 2.9035,
    ("217M", "prope,p=0.75", 42): 2.9029,
    ("217M", "lerope", 42): 2.8978,
}
"""Evaluated runs of the study, by rung, encoding and seed, in nats per token."""
CODE_LOSSES = {"rope": 1.2501, "prope,p=0.75": 1.2495, "lerope": 1.2398}
"""Runs at 52M on code; they have a validation loss and no evaluation, because one report compares one corpus."""

NUM_FILLER_TOKENS = 24_000
"""Enough for every prompt of the example."""

PROVENANCE = {"date": "2026-01-02T03:04:05+00:00", "lerope": "0.1.0", "commit": "a" * 40, "python": "3.12.0"}
DOCUMENTS = {"documents": "validation", "fingerprint": TEXT}
ESSAY = {"documents": "essay.txt", "fingerprint": "e" * 64}
"""A text from outside."""


def write_example(folder: Path) -> list[Path]:
    """Writes everything; about 20 runs in a second or two."""
    runs = [_study_run(folder, rung, encoding, seed, loss) for (rung, encoding, seed), loss in LOSSES.items()]
    for factor in (2, 4):
        length = factor * LENGTH
        run = _Run(folder / f"52M-lerope-42-length{length}", "52M", "lerope", 42, row_length=length)
        run.write(loss=3.38)
        run.frequencies()
        run.bands()
        runs.append(run.path)
    for encoding, loss in CODE_LOSSES.items():
        run = _Run(folder / "code" / f"52M-{encoding.partition(',')[0]}-42", "52M", encoding, 42, data=CODE)
        run.write(loss=loss)
        run.frequencies()
        if encoding == "lerope":
            run.bands()
        runs.append(run.path)
    run = _Run(folder / "code" / "52M-lerope-42-length2048", "52M", "lerope", 42, row_length=2048, data=CODE)
    run.write(loss=1.2)
    run.frequencies()
    run.bands()
    runs.append(run.path)
    for encoding, shift in (("rope", 0.0), ("lerope", -0.01)):
        for index in range(11, 16):
            run = _Run(folder / "sweep" / encoding / f"lr-{index}", "52M", encoding, 42, learning_rate_index=index)
            run.write(loss=3.4093 + shift + 0.012 * (index - 13) ** 2)
            runs.append(run.path)
    return runs


def _study_run(folder: Path, rung: str, encoding: str, seed: int, loss: float) -> Path:
    frozen = encoding.endswith(".json")
    name = ODD_NAME if frozen else "-".join([rung, *encoding.replace("=", "").split(","), str(seed)])
    run = _Run(folder / name, rung, encoding, seed)
    run.write(loss)
    run.evaluation(loss)
    run.frequencies()
    if run.learns or frozen or (rung, encoding, seed) == ("52M", "rope", 42):
        run.bands()
    if (rung, seed) == ("52M", 42):
        run.evaluation(loss + 0.3, "eval-essay.txt-eeeeeeee", ESSAY)
        run.needle()
        run.needle_long()
        run.extrapolation(loss)
        if encoding in ("rope", "lerope"):
            run.ablation(loss)
            run.slowest(loss)
            run.phasors(loss)
        if run.learns:
            run.beyond(loss)
    return run.path


class _Run:
    """One run directory to be filled."""

    def __init__(
        self,
        path: Path,
        rung: str,
        encoding: str,
        seed: int,
        row_length: int = LENGTH,
        data: str = TEXT,
        learning_rate_index: int | None = None,
        num_bands: int = NUM_BANDS,
    ) -> None:
        self.path, self.length, self.data, self.num_bands = path, row_length, data, num_bands
        self.kind = "frozen" if encoding.endswith(".json") else encoding.partition(",")[0]
        self.learns = self.kind == "lerope"
        self.generator = np.random.default_rng([seed, LAYERS[rung], row_length, len(encoding)])
        self.num_layers = LAYERS[rung]
        index = LEARNING_RATE_INDEX[rung] if learning_rate_index is None else learning_rate_index
        changes = {"row_length": row_length, "steps": 960 * (self.num_layers // 3) ** 2, "warmup_steps": 100}
        self.recipe = recipe(rung, encoding, seed, "bf16", learning_rate=2 ** (-index / 2), **changes)
        identity = Identity(recipe=self.recipe, data=data, initial_frequencies=encoding)
        code = float(data == CODE)
        start = replace(START, data="data/c4-encoded", code_share=code, command=f"lerope train {rung}", device="cuda")
        self.run = Run(path, identity, True, f"2026-01-01T00:00:{seed % 60:02d}+00:00", [start])
        self.rope = BASE ** (-np.arange(num_bands) / num_bands)
        self.theta = self._theta()
        wavelengths = 2 * math.pi / np.where(self.theta == 0, np.inf, self.theta)
        self.dominant = int(np.argmin(abs(wavelengths / (2.1 * row_length) - 1)))

    def _theta(self) -> np.ndarray:
        """The learned profile: fast bands as RoPE's, slow ones suppressed, one band at 2.1 train lengths."""
        if self.kind == "prope":
            return np.where(np.arange(self.num_bands) < 24, self.rope, 0.0)
        if self.kind == "rope":
            return 500_000.0 ** (-2 * np.arange(self.num_bands) / 64) if "base" in self.recipe.encoding else self.rope
        wavelengths = 2 * math.pi / self.rope
        slow = 1 / (1 + (0.35 * self.length / wavelengths) ** 3)
        noise = 0.05 * self.generator.standard_normal(self.num_bands)
        learned = np.exp((1 - slow) * np.log(0.93 * wavelengths) + slow * math.log(150 * self.length) + noise)
        middle = int(np.argmin(abs(np.log(wavelengths / (0.3 * self.length)))))
        learned[middle] = 2.1 * self.length * (1 + 0.02 * self.generator.standard_normal())
        return 2 * math.pi / learned

    def common(self, **settings: Any) -> dict[str, Any]:
        return {"run": self.run.label, "settings": settings, "provenance": PROVENANCE}

    def save(self, stem: str, result: RunResult, arrays: dict[str, np.ndarray] | None = None) -> None:
        file = self.path / "results" / f"{stem}.json"
        if arrays is None:
            result.save(file)
        else:
            result.save_with(file, arrays)

    def write(self, loss: float) -> None:
        """run.json, the records of training and its summary."""
        self.path.mkdir(parents=True)
        self.run.save()
        num_steps = self.recipe.steps
        metrics, frequencies = [], []
        batches = np.random.default_rng(self.recipe.seed)  # the same for every method of a seed
        steps = np.unique(np.geomspace(1, num_steps, 120).astype(int)).tolist()
        for step in steps:
            now = loss + (10.4 - loss) * (1 + step / 12) ** -0.9 * (1 - step / num_steps)
            metrics.append(
                {
                    "step": step,
                    "tokens": step * self.recipe.batch_tokens,
                    "loss": now + 0.03 * batches.standard_normal() + 0.003 * self.generator.standard_normal(),
                    "learning_rate": self.recipe.learning_rate * min(1, step / 100),
                    "gradient_norm": 1 + 4 / step,
                    "frequency_gradient_norm": 0.1 / math.sqrt(step),
                    "seconds": 0.1,
                    "wait_seconds": 0.0,
                    "tokens_per_second": 1.3e6,
                    "share_of_peak": 0.4,
                }
            )
            if step in (*steps[60::12], num_steps):
                metrics.append({"step": step, "validation_loss": now, "validation_tokens": 1 << 20})
        scales = np.log(self.theta / self.rope) if self.learns else np.zeros(self.num_bands)
        for step in np.linspace(0, num_steps, 25).astype(int).tolist() if self.learns else [0]:
            share = -math.expm1(-4 * step / num_steps) / -math.expm1(-4)
            record = {"step": step, "log_scales": (share * scales).tolist()}
            frequencies.append(record if self.learns else {**record, "frequencies": self.theta.tolist()})
        for name, records in (("metrics", metrics), ("frequencies", frequencies)):
            (self.path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        training = Training(
            **self.common(),
            num_steps=num_steps,
            num_tokens=num_steps * self.recipe.batch_tokens,
            loss=loss + 0.02,
            validation_loss=loss,
            seconds=0.1 * num_steps,
            wait_share=0.001,
            peak_memory_bytes=12 << 30,
            last_start=Timeline(
                num_steps=num_steps,
                total_seconds=0.1 * num_steps + 40,
                phases={"start": 4.0, "data": 1.0, "model": 2.0, "first step": 13.0, "finish": 1.0},
                hook_seconds={"validation": 8.0, "checkpoints": 2.0, "frequencies": 1.0},
                median_step_seconds=0.1,
                step_share=0.1 * num_steps / (0.1 * num_steps + 40),
            ),
        )
        self.save("training", training)

    def evaluation(self, loss: float, stem: str = "eval", documents: dict[str, str] = DOCUMENTS) -> None:
        """Losses whose noise is the same for all methods of a seed, and whose gap to RoPE grows with position."""
        lengths = np.ceil(np.random.default_rng(0).lognormal(5.3, 0.9, 150)).astype(np.int64)
        ends = np.cumsum(lengths)
        positions = np.concatenate([np.arange(length) % self.length for length in lengths])
        noise = np.random.default_rng(self.recipe.seed).standard_normal(len(positions))
        own = 0.05 * self.generator.standard_normal(len(positions))
        falling = 1.5 * (1 + positions / 8) ** -0.5
        gap = -0.004 * np.log1p(positions) if self.kind in ("lerope", "frozen") else np.zeros(len(positions))
        losses = noise + own + falling + gap
        losses = (losses + loss - losses.mean()).astype(np.float32)
        mean = float(losses.astype(np.float64).mean())
        edges = np.linspace(0, self.length, 33).astype(int).tolist()
        bins = []
        for start, stop in pairwise(edges):
            here = losses[(positions >= start) & (positions < stop)]
            if len(here):
                bins.append({"start": start, "stop": stop, "num_tokens": len(here), "loss": float(here.mean())})
        result = Evaluation(
            **self.common(**documents, length=self.length, truncate=False, max_tokens=None, precision="float32"),
            num_documents=len(lengths),
            num_tokens=len(losses),
            loss=mean,
            perplexity=math.exp(mean),
            document_mean_loss=mean + 0.08,
            bits_per_byte=mean / 4.4 / math.log(2),
            by_position=bins,
        )
        self.save(stem, result, loss_arrays(losses, ends, self.length))

    def frequencies(self) -> None:
        bands = []
        for band, (theta, rope) in enumerate(zip(self.theta.tolist(), self.rope.tolist(), strict=True)):
            turns = theta * self.length / (2 * math.pi)
            bands.append(
                {
                    "layer": None,
                    "head": None,
                    "band": band,
                    "frequency": theta,
                    "wavelength": 2 * math.pi / theta if theta else None,
                    "rope_wavelength": 2 * math.pi / rope,
                    "log_scale": math.log(theta / rope) if theta else None,
                    "turns": turns,
                    "aliased": theta > math.pi,
                    "dead": turns < 0.01,
                }
            )
        first = self.dominant + 1 if self.kind in ("lerope", "frozen") else None
        result = LearnedFrequencies(
            **self.common(suppressed_lengths=4.0, suppressed_factor=2.0),
            train_length=self.length,
            base=BASE,
            sharing="shared",
            sets=[
                {
                    "layer": None,
                    "head": None,
                    "suppressed_from": first,
                    "suppressed_rope_wavelength": None if first is None else 2 * math.pi / float(self.rope[first]),
                    "num_aliased": 0,
                    "num_dead": sum(band["dead"] for band in bands),
                }
            ],
            bands=bands,
        )
        steps = np.linspace(0, self.recipe.steps, 25).astype(np.int64) if self.learns else np.zeros(1, np.int64)
        shares = -np.expm1(-4 * steps / self.recipe.steps) / -math.expm1(-4) if self.learns else np.ones(1)
        with np.errstate(divide="ignore"):
            history = self.rope * np.exp(shares[:, None] * np.log(self.theta / self.rope))
        if not self.learns:
            history = self.theta[None]
        self.save("frequencies", result, {"steps": steps, "frequencies": history})

    def bands(self) -> None:
        distances = np.arange(self.length)
        phases = distances * self.theta[:, None]
        sizes = 0.05 + 0.25 * self.generator.random((self.num_layers, self.num_bands, 1))
        curves = sizes * (np.cos(phases) - 0.3) * np.exp(-distances / self.length)
        if self.learns:
            depth = 1.5 + 1.5 * self.generator.random(self.num_layers)
            curves[:, self.dominant] = -depth[:, None] * np.sin(phases[self.dominant])
        rms = curves.mean(0)[:, 1:].std(-1)
        layer_rms = curves[..., 1:].std(-1)
        dominant = int(rms.argmax())
        wavelengths = [2 * math.pi / theta if theta else None for theta in self.theta.tolist()]
        heads = self.recipe.model.num_heads
        near = np.exp(-0.5 * ((np.arange(self.num_bands) - dominant) / 2) ** 2)
        noise = self.generator.random((2, self.num_layers, heads, self.num_bands))
        query_norms, key_norms = 0.7 + 0.4 * noise + (3 if self.learns else 1) * near
        bounds = query_norms * key_norms / 8
        result = Bands(
            **self.common(**DOCUMENTS, length=self.length, num_rows=16),
            train_length=self.length,
            dominant_band=dominant,
            dominant_wavelength=wavelengths[dominant],
            dominance=float(rms[dominant] / np.delete(rms, dominant).max()),
            bands=[
                {
                    "band": band,
                    "wavelength": wavelengths[band],
                    "rms": float(rms[band]),
                    "mean": float(curves[:, band, 1:].mean()),
                    "layer_spread": float(np.sqrt((curves[:, band, 1:].std(0) ** 2).mean())),
                }
                for band in range(self.num_bands)
            ],
            layers=[
                {
                    "layer": layer,
                    "band": band,
                    "query_norm": float(query_norms[layer, :, band].mean()),
                    "key_norm": float(key_norms[layer, :, band].mean()),
                    "bound": float(bounds[layer, :, band].mean()),
                    "rms": float(layer_rms[layer, band]),
                }
                for layer in range(self.num_layers)
                for band in range(self.num_bands)
            ],
        )
        arrays = {"contributions": curves, "mean": curves.mean(0), "std": curves.std(0)}
        arrays |= {"query_norms": query_norms, "key_norms": key_norms, "bounds": bounds}
        self.save("bands", result, arrays)

    def ablation(self, loss: float) -> None:
        removals, num_documents = [], 40
        for meaning, size in (("contribution", 1.0), ("frequency", 0.7)):
            for band in range(self.num_bands):
                increase = size * (0.004 + 0.06 * self.generator.random() ** 2)
                if self.learns and band == self.dominant:
                    increase = 0.76 * size
                theta = float(self.theta[band])
                removals.append(
                    {
                        "meaning": meaning,
                        "band": band,
                        "wavelength": 2 * math.pi / theta if theta else None,
                        "increase": increase,
                        "standard_error": 0.05 * increase + 0.001,
                    }
                )
        counts = np.full(num_documents, 500.0)
        whole = loss * counts
        increases = np.array([removal["increase"] for removal in removals]).reshape(2, self.num_bands, 1)
        result = Ablation(
            **self.common(**DOCUMENTS, length=self.length, max_tokens=20_000),
            num_documents=num_documents,
            num_tokens=int(counts.sum()),
            loss=loss,
            removals=removals,
        )
        self.save("ablation", result, {"counts": counts, "whole": whole, "without": whole + increases * counts})

    def slowest(self, loss: float) -> None:
        """Next to nothing for bands that are suppressed, more with each that turns, most with the dominant one."""
        slowest = sorted(range(self.num_bands), key=lambda band: self.theta[band])
        turned = self.theta[slowest] * self.length / (2 * math.pi)
        costs = np.cumsum(
            0.02 * np.minimum(turned, 1) ** 2 + (0.7 if self.learns else 0.0) * (np.array(slowest) == self.dominant)
        )
        removals = [
            {
                "meaning": meaning,
                "num_bands": number,
                "band": slowest[number - 1],
                "wavelength": 2 * math.pi / float(self.theta[slowest[number - 1]]),
                "increase": float(size * costs[number - 1]) - 0.0002,
                "standard_error": 0.05 * float(costs[number - 1]) + 0.0005,
            }
            for meaning, size in (("contribution", 2.0), ("frequency", 1.0))
            for number in range(1, self.num_bands + 1)
        ]
        counts = np.full(40, 500.0)
        increases = np.array([removal["increase"] for removal in removals]).reshape(2, self.num_bands, 1)
        result = SlowestRemovals(
            **self.common(**DOCUMENTS, length=self.length, max_tokens=20_000),
            num_documents=len(counts),
            num_tokens=int(counts.sum()),
            loss=loss,
            removals=removals,
        )
        self.save("slowest", result, {"counts": counts, "whole": loss * counts, "without": (loss + increases) * counts})

    def beyond(self, loss: float) -> None:
        """The dominant band alone makes the loss grow beyond the train length; without it there is little to see."""
        edges = np.arange(0, 4 * self.length + 1, self.length // 8)
        far = np.clip(edges[1:] / self.length - 1, 0, None)
        counts = np.full(len(far), 100.0)
        rows = [{"band": None, "wavelength": None, "rope_wavelength": None, "beyond": -0.55}]
        rows += [
            {
                "band": band,
                "wavelength": 2 * math.pi / float(self.theta[band]),
                "rope_wavelength": 2 * math.pi / float(self.rope[band]),
                "beyond": -0.5 if band == self.dominant else 0.02 * float(self.generator.standard_normal()),
            }
            for band in range(self.num_bands)
        ]
        rows = [{**row, "within": 0.03, "within_error": 0.002, "beyond_error": 0.01} for row in rows]
        curves = [loss + 0.4 * far, *(loss + (0.4 + row["beyond"] / 1.5) * far for row in rows)]
        result = Beyond(
            **self.common(**DOCUMENTS, train_length=self.length, to=4 * self.length, max_tokens=20_000),
            num_documents=12,
            num_tokens=2_400,
            within_loss=loss,
            beyond_loss=loss + 0.6,
            bands=rows,
        )
        self.save("beyond", result, {"edges": edges, "counts": counts, "sums": np.stack(curves) * counts})

    def phasors(self, loss: float) -> None:
        distances = np.arange(1, self.length)
        noise = self.generator.standard_normal((2, 1, 1, self.num_bands, len(distances)))
        phasors = (noise[0] + 1j * noise[1]) / distances**0.9 * 1e-4
        waves = np.exp(1j * distances * self.theta[:, None])
        gradients = 1j * distances * phasors * waves
        resultant = gradients.sum(-1)
        radii = {"objective": abs(phasors), "gradient": abs(gradients)}
        scales = {name: values / values.max(-1, keepdims=True) for name, values in radii.items()}
        edges = np.linspace(0, 1, 51)
        grid = np.geomspace(1e-6, math.pi, 400)
        turns = np.exp(1j * distances[:, None] * grid)
        bands = [
            {
                "layer": None,
                "head": None,
                "band": band,
                "frequency": float(self.theta[band]),
                "wavelength": 2 * math.pi / float(self.theta[band]),
                "objective": float((phasors * waves).sum(-1).real[0, 0, band]),
                "gradient": float(resultant.real[0, 0, band]),
                "autograd_gradient": float(resultant.real[0, 0, band]),
                "covariance_gradient": float(resultant.real[0, 0, band]),
                "log_scale_gradient": float(self.theta[band] * resultant.real[0, 0, band]),
                "direction": float(np.angle(resultant[0, 0, band])),
                "coherence": float(abs(resultant[0, 0, band]) / abs(gradients[0, 0, band]).sum()),
                "objective_scale": float(scales["objective"][0, 0, band].mean()),
                "gradient_scale": float(scales["gradient"][0, 0, band].mean()),
            }
            for band in range(self.num_bands)
        ]
        result = Phasors(
            **self.common(**DOCUMENTS, length=self.length, num_rows=4, layer=None),
            layers=list(range(self.num_layers)),
            loss=loss,
            relative_error=2e-7,
            covariance_relative_error=3e-7,
            bands=bands,
        )
        arrays = {
            "phasors_real": phasors.real,
            "phasors_imag": phasors.imag,
            "distances": distances,
            "frequencies": self.theta[None, None],
            "grid": grid,
            "objective": (phasors @ turns).real,
            "derivative": (1j * distances * phasors @ turns).real,
            "edges": edges,
        }
        for name, values in scales.items():
            counts = [np.histogram(row, edges)[0] for row in values.reshape(self.num_bands, -1)]
            arrays[f"{name}_histogram"] = np.array(counts, np.int64).reshape(1, 1, self.num_bands, -1)
        self.save("phasors", result, arrays)

    def needle(self) -> None:
        """Values within the train length, among distractors."""
        ahead = {"lerope": 0.08, "frozen": 0.05, "prope": 0.02}.get(self.kind, 0.0)
        rates = {
            (self.length, number, depth / 10): 0.97 - 0.12 * math.log2(number) + ahead - 0.05 * abs(depth - 5) / 5
            for number in (1, 3, 7, 15, 31)
            for depth in range(11)
        }
        self._needles("needle", rates, {"distractors": [1, 3, 7, 15, 31]})

    def needle_long(self) -> None:
        """One needle, far beyond the train length."""
        ahead = {"lerope": 0.25, "frozen": 0.15, "prope": 0.05}.get(self.kind, 0.0)
        rates = {
            (self.length * factor, 0, depth / 10): 1.0 - 0.3 * math.log2(factor) + ahead + 0.04 * depth
            for factor in (1, 2, 4, 8, 16)
            for depth in range(11)
        }
        beyond = {"to": 16 * self.length, "method": "yarn", "temperature": 0.1, "dominant_band": None}
        self._needles("needle-long", rates, {"distractors": [0], **beyond})

    def _needles(self, stem: str, rates: dict[tuple[int, int, float], float], settings: dict[str, Any]) -> None:
        samples = 20
        cells = [
            _cell(length, number, depth, samples, round(samples * min(1, max(0, rate))))
            for (length, number, depth), rate in rates.items()
        ]
        groups: dict[tuple[int, int], list[int]] = {}
        for cell in cells:
            groups.setdefault((cell["length"], cell["num_distractors"]), []).append(cell["num_correct"])
        totals = [
            _cell(length, number, None, samples * len(right), sum(right)) for (length, number), right in groups.items()
        ]
        rows = [(cell, sample) for cell in cells for sample in range(samples)]
        arrays = {
            "length": np.array([cell["length"] for cell, _ in rows], np.int32),
            "num_distractors": np.array([cell["num_distractors"] for cell, _ in rows], np.int32),
            "depth": np.array([cell["depth"] for cell, _ in rows]),
            "sample": np.array([sample for _, sample in rows], np.int32),
            "outcome": np.array([sample < cell["num_correct"] for cell, sample in rows], np.uint8),
        }
        for name in ("gold_log_probability", "margin", "worst_margin"):
            arrays[name] = np.array([cell[name] for cell, _ in rows])
        filler = {"filler": "python documentation", "num_filler_tokens": NUM_FILLER_TOKENS, "precision": "float32"}
        depths = [depth / 10 for depth in range(11)]
        common = self.common(train_length=self.length, samples=samples, depths=depths, **settings, **filler)
        self.save(stem, Needle(**common, cells=cells, totals=totals, left_out=[]), arrays)

    def extrapolation(self, loss: float) -> None:
        """Naive losses rise beyond the train length; YaRN's fall on."""
        to, train = 2 * self.length, self.length
        positions = np.arange(to)
        beyond = np.maximum(positions - train, 0) / train
        found = [("none", 0.0, "naive", (2.5 if self.learns else 1.0) * np.sqrt(beyond))]
        found += [("pi", 0.0, "PI", 0.4 * (beyond > 0)), ("ntk_by_parts", 0.0, "NTK-by-parts", 0.05 * beyond)]
        found += [("yarn", c, f"YaRN, c = {c:g}", 0.02 * beyond * abs(c - 0.1) * 10) for c in (0.05, 0.1, 0.15, 0.2)]
        found += [("dominant_band", 0.1, f"band {self.dominant} alone, c = 0.1", 0.08 * beyond)]
        counts = np.full(to, 40.0)
        falling = loss - 0.5 + 2 * (1 + positions / 8) ** -0.5
        ways, bins, curves = [], [], {}
        tokens = 0.08 * np.random.default_rng(self.recipe.seed).standard_normal(to)
        for number, (method, temperature, label, rise) in enumerate(found):
            losses = falling + rise + tokens + 0.01 * self.generator.standard_normal(to)
            for selection in ("all", "long"):
                head = {"selection": selection, "method": method, "temperature": temperature, "label": label}
                curves |= {f"{selection}.{number}.sums": losses * counts, f"{selection}.{number}.counts": counts}
                row: dict[str, Any] = {**head, "num_documents": 40, "num_tokens": 40 * to}
                row["num_extrapolated"] = 40 * (to - train)
                for part, mean in (
                    ("in_distribution", losses[:train].mean()),
                    ("extrapolated", losses[train:].mean()),
                    ("full", losses.mean()),
                ):
                    row |= {f"{part}_loss": float(mean), f"{part}_perplexity": math.exp(mean)}
                ways.append(row)
                width = to // 64
                for start in range(0, to, width):
                    here = {"start": start, "stop": start + width, "num_tokens": 40 * width}
                    bins.append({**head, **here, "loss": float(losses[start : start + width].mean())})
        settings = {**DOCUMENTS, "train_length": train, "to": to, "max_tokens": None, "precision": "float32"}
        settings |= {"temperatures": [0.05, 0.1, 0.15, 0.2], "dominant_band": self.dominant}
        self.save("extrapolation", Extrapolation(**self.common(**settings), ways=ways, by_position=bins), curves)


def _cell(length: int, num_distractors: int, depth: float | None, samples: int, correct: int) -> dict[str, Any]:
    rate = correct / samples
    half = 1.96 * math.sqrt(max(rate * (1 - rate), 0.01) / samples)
    return {
        "length": length,
        "num_distractors": num_distractors,
        "depth": depth,
        "num_samples": samples,
        "num_correct": correct,
        "rate": rate,
        "low": max(0.0, rate - half),
        "high": min(1.0, rate + half),
        "distractor_rate": (1 - rate) / 2 if num_distractors else 0.0,
        "other_rate": (1 - rate) / 2 if num_distractors else 1 - rate,
        "gold_log_probability": math.log(0.02 + 0.97 * rate),
        "margin": 6 * rate - 2,
        "margin_error": 0.3,
        "worst_margin": 6 * rate - 3,
    }
