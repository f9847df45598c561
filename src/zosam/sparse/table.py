"""The per-layer table that `print(sparse)` shows."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def table(title: str, weights: Mapping[str, Tensor], masks: Mapping[str, Tensor], dense: Mapping[str, Tensor]) -> str:
    """One line per prunable weight, under a head with both sparsities: of all prunable weights, of the masked ones."""
    rows = [("layer", "shape", "active", "of", "density")]
    zeros = masked = 0
    for name, weight in weights.items():
        active, size = int(masks[name].sum()), weight.numel()
        zeros, masked = zeros + size - active, masked + size
        rows.append((name, _shape(weight), f"{active:,}", f"{size:,}", f"{active / size:.1%}"))
    for name, weight in dense.items():
        rows.append((name, _shape(weight), f"{weight.numel():,}", f"{weight.numel():,}", "kept dense"))
    everything = masked + sum(w.numel() for w in dense.values())
    head = f"{title}: {zeros / everything:.2%} of all prunable weights are zero"
    if dense:
        head += f" ({zeros / masked:.2%} of the masked ones)"
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join([head, *(_line(row, widths) for row in rows)])


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])


def _shape(weight: Tensor) -> str:
    return "x".join(map(str, weight.shape))
