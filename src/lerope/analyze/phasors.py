"""Where the gradient of a frequency comes from, distance by distance.

With a the attention weights, g_s = dL/do_s, z_st the logits and q, k as complex numbers of a band before rotation:

w_st   = dL/dz_st = a_st (g_s . v_t - g_s . o_s)
C_m(d) = sum over s of w_{s,s-d} q_s conj(k_{s-d}) / sqrt(head_dim)
P_m(x) = Re sum over d >= 1 of C_m(d) e^{i d x}            dL/dtheta_m = P_m'(theta_m)
G_m(d) = i d C_m(d) e^{i d theta_m}                        dL/dtheta_m = Re sum of G_m

L is the mean loss of the tokens looked at. Sums run over heads, rows, and layers that share frequencies. Rotated
queries and keys give C_m(d) e^{i d theta_m} in the very numbers that the model used; C_m follows from it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from lerope.analyze.bands import full_rows
from lerope.analyze.subjects import OwnModel, as_complex
from lerope.analyze.targets import Target, check_rows, wavelength
from lerope.core.encoding import Layout
from lerope.core.signals import Signals
from lerope.core.terminal import Display
from lerope.data.shards import Tokens
from lerope.evaluate.measuring import Measurement
from lerope.evaluate.scorer import as_tensor
from lerope.model.transformer import Transformer
from lerope.results import Arrays, PhasorBand, Phasors
from lerope.rotary.rotation import Rotation

Floats = npt.NDArray[np.float64]

FILE = "phasors.json"
# Queries and distances taken at a time: on a CPU all bands of such a tile stay in its cache.
_TILES = {"cpu": (32, 256), "cuda": (256, 2048)}
_NUM_BINS = 50
_GRID = np.geomspace(1e-6, math.pi, 400)


@dataclass(frozen=True)
class Sums:
    """What all rows come to. Sets of frequencies are (layers or 1, heads or 1), 1 where they are shared."""

    loss: float
    frequencies: Floats
    """(sets..., bands)."""
    turned: npt.NDArray[np.complex128]
    """C_m(d) e^{i d theta_m}: (sets..., bands, length)."""
    covariance: Floats
    """dL/dtheta_m as minus the sum over queries of a covariance over keys: (sets..., bands)."""
    autograd: Floats
    """The same as torch computes it."""
    error: float
    """Phasors' gradient less autograd's, relative to autograd's over all bands of a layer; the worst layer."""
    covariance_error: float
    """The same of the covariance form."""


def measure_phasors(target: Target, num_rows: int, layer: int | None, device: torch.device) -> Phasors:
    """Measures full rows of a run's documents and writes `results/phasors.json` with the phasors beside it.

    Args:
        layer: look only at this one; at all if None.
    """
    if target.run is None:
        raise ValueError(f"{target.path} is not a run, and phasors need one; leave the part out.")
    rows = full_rows(target.documents.source, target.length + 1, num_rows)
    settings = {**target.settings, "num_rows": len(rows), "layer": layer}
    check_rows(rows, target)
    measurement = target.measurement(Phasors, FILE, settings, device)

    def measured() -> Callable[[], tuple[Phasors, Arrays]]:
        subject = target.load(device)
        assert isinstance(subject, OwnModel)
        if layer is not None and not 0 <= layer < subject.num_layers:
            raise ValueError(f"layer must be 0 to {subject.num_layers - 1}; got {layer}.")
        layers = list(range(subject.num_layers)) if layer is None else [layer]
        sums = gradient_phasors(subject.model, rows, layers, device, f"{target.name}, phasors")
        return lambda: _summarise(measurement, sums, layers)

    return measurement.carry_out(measured)


def gradient_phasors(
    model: Transformer, rows: Sequence[Tokens], layers: Sequence[int], device: torch.device | str, label: str
) -> Sums:
    """Runs each row forwards and backwards and takes the gradient of the frequencies apart.

    The model may be float32 or float64; sums are float64. Fixed frequencies are treated as if they could be learned.

    Args:
        rows: tokens of one document or window each; the first of each is an input only, the last a target only.
        label: what to call the work in progress.
    """
    model = model.to(device).eval().requires_grad_(False)
    encoding, num_heads = model.encoding, model.config.num_heads
    own_layers = encoding.num_layers is not None
    theta = {layer: encoding.frequencies(layer if own_layers else None).detach() for layer in layers}
    num_bands, num_sets = encoding.rotary_dim // 2, theta[layers[0]].numel() * 2 // encoding.rotary_dim
    longest = max(len(row) for row in rows) - 1
    num_tokens = sum(len(row) - 1 for row in rows)
    turned = torch.zeros(len(layers), num_sets, num_bands, longest, dtype=torch.complex128, device=device)
    covariance, autograd = torch.zeros(2, len(layers), num_sets, num_bands, dtype=torch.float64, device=device)
    total = 0.0
    with Display() as display, Signals() as signals:
        for number, row in enumerate(rows, start=1):
            display.show(f"{label}  row {number} of {len(rows)}, forwards and backwards")
            seen, loss = _run(model, row, theta, num_tokens)
            total += loss
            for at, layer in enumerate(layers):
                record = seen[layer]
                assert record.frequencies.grad is not None
                autograd[at] += record.frequencies.grad.double().view(num_sets, num_bands)
                for head in range(num_heads):
                    q, k, v, g = (x[0, :, head].double() for x in (*record.turned, record.v, record.g))
                    phasors, shares = head_phasors(q, k, v, g, num_bands, encoding.layout)
                    which = head * num_sets // num_heads
                    turned[at, which, :, : len(q)] += phasors
                    covariance[at, which] += shares
                    signals.check()
                display.show(f"{label}  row {number} of {len(rows)}, layer {at + 1} of {len(layers)}")
    distances = torch.arange(longest, dtype=torch.float64, device=device)
    errors = [_worst(form, autograd) for form in (-(turned * distances).imag.sum(-1), covariance)]
    shared = [x if own_layers else x.sum(0, keepdim=True) for x in (turned, covariance, autograd)]
    frequencies = torch.stack([theta[layer].view(num_sets, num_bands) for layer in layers]).double()
    return Sums(
        loss=total,
        frequencies=(frequencies if own_layers else frequencies[:1]).cpu().numpy(),
        turned=shared[0].cpu().numpy(),
        covariance=shared[1].cpu().numpy(),
        autograd=shared[2].cpu().numpy(),
        error=errors[0],
        covariance_error=errors[1],
    )


def head_phasors(q: Tensor, k: Tensor, v: Tensor, g: Tensor, num_bands: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """C_m(d) e^{i d theta_m} of one head, (bands, length), and the covariance form of the gradient, (bands,).

    Attention is causal over the whole row and is computed again, some queries at a time.

    Args:
        q, k: (length, head_dim), rotated.
        v, g: (length, head_dim): values, and the gradient of attention's output.
    """
    length, head_dim = q.shape
    scale = head_dim**-0.5
    num_queries, num_distances = _TILES[q.device.type]
    q_bands, k_bands = (as_complex(x, num_bands, layout) for x in (q, k))
    parts = torch.view_as_real(k_bands)
    # Keys from the last to the first, real and imaginary parts apart, and room beyond the first: (2, bands, ...).
    backwards = pad(parts.flip(0).permute(2, 1, 0), (0, num_queries + num_distances)).contiguous()
    sums = q.new_zeros(num_bands, 2, 2, length + num_distances)
    covariance = q.new_zeros(num_bands)
    for start in range(0, length, num_queries):
        stop = min(start + num_queries, length)
        queries, keys = torch.arange(start, stop, device=q.device), torch.arange(stop, device=q.device)
        logits = (q[start:stop] @ k[:stop].t()) * scale
        weights = logits.masked_fill_(keys > queries[:, None], -math.inf).softmax(-1)
        pull = g[start:stop] @ v[:stop].t()
        mean_pull = (weights * pull).sum(-1, keepdim=True)
        _add_skewed(sums, weights * (pull - mean_pull), q_bands[start:stop], backwards, start)
        offsets = (keys - start).to(q.dtype)
        sines = [
            _offset_sines(each, q_bands[start:stop], parts[:stop].flatten(1), offsets)
            for each in (weights * pull, weights)
        ]
        covariance -= (sines[0] - mean_pull * sines[1]).sum(0)
    sums = sums[..., :length]
    products = torch.complex(sums[:, 0, 0] + sums[:, 1, 1], sums[:, 1, 0] - sums[:, 0, 1])
    return products * scale, covariance * scale


def _add_skewed(sums: Tensor, w: Tensor, q: Tensor, backwards: Tensor, start: int) -> None:
    """sums[m, x, y, d] += sum over s of w[s, s - d] q_x[s, m] k_y[s - d, m], x and y being real or imaginary parts.

    Queries are taken from the last to the first too: then both w and the keys, seen by distance, are plain windows
    that move by one from each query to the next, and a product of matrices does the sum over queries.

    Args:
        w: (queries, keys up to the last query).
        q: (queries, bands), complex.
        backwards: the keys, see `head_phasors`.
    """
    num_queries, num_bands = q.shape
    stop = start + num_queries
    width = _TILES[q.device.type][1]
    length = backwards.shape[-1] - sum(_TILES[q.device.type])
    reversed_w = pad(w.flip(0, 1), (0, num_queries + width)).contiguous()
    parts = torch.view_as_real(q).flip(0).permute(1, 2, 0).contiguous()
    row, line = reversed_w.shape[1], backwards.shape[-1]
    tile = q.real.new_empty(num_bands, num_queries, 2, width)
    for first in range(0, stop, width):
        by_distance = reversed_w.as_strided((1, num_queries, 1, width), (0, row + 1, 0, 1), first)
        keys = backwards.as_strided(tile.shape, (line, 1, num_bands * line, 1), length - stop + first)
        torch.mul(keys, by_distance, out=tile)
        products = torch.bmm(parts, tile.view(num_bands, num_queries, 2 * width))
        sums[..., first : first + width] += products.view(num_bands, 2, 2, width)


def _offset_sines(weights: Tensor, q: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
    """The sum over keys of weights * (s - t) Im(q_s conj(k_t)): (queries, bands).

    Args:
        keys: (keys, 2 * bands), the parts of each band next to each other.
        offsets: (keys,), positions counted from the first query.
    """
    plain, moved = (torch.view_as_complex((weights @ x).view(*q.shape, 2)) for x in (keys, keys * offsets[:, None]))
    own = torch.arange(len(q), device=q.device, dtype=offsets.dtype)[:, None]
    return (q * (own * plain - moved).conj()).imag


class _Recording(Rotation):
    """A rotation that keeps what its layer did with one row: its output, values, and the gradient of attention's."""

    __slots__ = ("g", "turned", "v")
    v: Tensor
    g: Tensor

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        out = super().__call__(q, k)
        self.turned = (out[0].detach(), out[1].detach())
        return out


def _run(
    model: Transformer, row: Tokens, theta: dict[int, Tensor], num_tokens: int
) -> tuple[dict[int, _Recording], float]:
    """Forwards and backwards; what the layers of `theta` did, and the row's part of the loss."""
    encoding = model.encoding
    device = next(iter(theta.values())).device
    tokens = as_tensor(row).to(device)
    positions = torch.arange(len(row) - 1, device=device)
    records: dict[int, _Recording] = {}
    rotations: list[Rotation] = []
    for layer in range(model.config.num_layers):
        if layer in theta:
            leaf = theta[layer].clone().requires_grad_()
            # The middle of the row as origin: the least rounding in autograd's sum.
            records[layer] = _Recording(positions, leaf, encoding.layout, encoding.head_dim, (len(row) - 2) // 2)
            rotations.append(records[layer])
        else:
            rotations.append(encoding.rotation(positions, None if encoding.num_layers is None else layer))
    with _recording(model, records), torch.enable_grad():
        hidden = model.hidden(tokens[None, :-1], rotations=rotations)
        loss = model.head(hidden, tokens[None, 1:]) / num_tokens
        loss.backward()
    return records, float(loss.detach())


@contextmanager
def _recording(model: Transformer, records: dict[int, _Recording]) -> Iterator[None]:
    """While entered, forward passes leave values and the gradient of attention's output in the records."""
    hooks: list[Any] = []
    for layer, record in records.items():
        attention: Any = model.blocks[layer].attention

        def keep_values(
            module: Any, args: Any, out: Tensor, record: _Recording = record, split: Any = attention.split
        ) -> None:
            record.v = out.detach().unflatten(-1, split)[..., 2, :, :]

        def keep_gradient(
            module: Any, args: tuple[Tensor], record: _Recording = record, split: Any = attention.split
        ) -> None:
            def keep(grad: Tensor) -> None:
                record.g = grad.unflatten(-1, split[1:])

            args[0].register_hook(keep)

        hooks += [
            attention.qkv.register_forward_hook(keep_values),
            attention.out.register_forward_pre_hook(keep_gradient),
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _worst(form: Tensor, autograd: Tensor) -> float:
    """The largest relative error of any layer."""
    sizes = autograd.flatten(1).norm(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    return float(((form - autograd).flatten(1).norm(dim=1) / sizes).max())


def _summarise(
    measurement: Measurement[Phasors], sums: Sums, layers: list[int]
) -> tuple[Phasors, dict[str, npt.NDArray[Any]]]:
    """Everything that follows from the phasors."""
    theta = sums.frequencies
    distances = np.arange(1, sums.turned.shape[-1])
    turned = sums.turned[..., 1:]
    phasors = turned * np.exp(-1j * distances * theta[..., None])
    gradients = 1j * distances * turned
    resultant = gradients.sum(-1)
    scales = {"objective": _scaled(np.abs(turned)), "gradient": _scaled(np.abs(gradients))}
    by_layer, by_head = len(theta) == len(layers), theta.shape[1] > 1
    bands = []
    for at in np.ndindex(*theta.shape):
        value = float(theta[at])
        bands.append(
            PhasorBand(
                layer=layers[at[0]] if by_layer else None,
                head=at[1] if by_head else None,
                band=at[2],
                frequency=value,
                wavelength=wavelength(value),
                objective=float(turned[at].real.sum()),
                gradient=float(resultant[at].real),
                autograd_gradient=float(sums.autograd[at]),
                covariance_gradient=float(sums.covariance[at]),
                log_scale_gradient=value * float(resultant[at].real),
                direction=float(np.angle(resultant[at])),
                coherence=float(abs(resultant[at]) / max(abs(gradients[at]).sum(), np.finfo(float).tiny)),
                objective_scale=float(scales["objective"][at].mean()),
                gradient_scale=float(scales["gradient"][at].mean()),
            )
        )
    waves = np.exp(1j * distances[:, None] * _GRID)
    edges = np.linspace(0.0, 1.0, _NUM_BINS + 1)
    arrays: dict[str, npt.NDArray[Any]] = {
        "phasors_real": phasors.real,
        "phasors_imag": phasors.imag,
        "distances": distances,
        "frequencies": theta,
        "grid": _GRID,
        "objective": (phasors @ waves).real,
        "derivative": (1j * distances * phasors @ waves).real,
        "edges": edges,
        **{f"{name}_histogram": _histograms(values, edges) for name, values in scales.items()},
    }
    result = Phasors(
        **measurement.common,
        layers=layers,
        loss=sums.loss,
        relative_error=sums.error,
        covariance_relative_error=sums.covariance_error,
        bands=bands,
    )
    return result, arrays


def _scaled(radii: Floats) -> Floats:
    """Radii relative to the largest of their band."""
    largest = radii.max(-1, keepdims=True)
    scaled: Floats = radii / np.where(largest > 0, largest, 1.0)
    return scaled


def _histograms(values: Floats, edges: Floats) -> npt.NDArray[np.int64]:
    """How many distances have each scale: (sets..., bands, bins)."""
    flat = [np.histogram(row, edges)[0] for row in values.reshape(-1, values.shape[-1])]
    return np.array(flat, np.int64).reshape(*values.shape[:-1], -1)
