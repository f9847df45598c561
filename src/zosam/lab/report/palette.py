"""One hue for each optimizer and one dash for each sparsity, through the whole page and in print.

The hues are Okabe and Ito's and Tol's, which colour-blind readers can tell apart; maps of values are viridis and one
with zero in its middle. Variants of an optimizer share its hue and differ in lightness; nothing is said by colour
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

HUES = {
    "sgd": ("#4d4d4d", "#c4c9cf"), "zosam": ("#d55e00", "#f58b45"), "sam": ("#0072b2", "#4aa3e8"),
    "rwp": ("#009e73", "#2cc79b"), "randomsam": ("#cc79a7", "#e29cc2"), "msam": ("#e69f00", "#f0b73c"),
    "s2sam": ("#332288", "#9c90e8"), "asam": ("#882255", "#d479a2"), "esam": ("#999933", "#c8c860"),
    "looksam": ("#117733", "#5fbf7f"), "gsam": ("#aa4499", "#d98bcb"),
}  # fmt: skip
"""On white and on dark, by optimizer."""
ORDER = list(HUES)
SERIES = (
    ("#0072b2", "#4aa3e8"), ("#d55e00", "#f58b45"), ("#009e73", "#2cc79b"), ("#cc79a7", "#e29cc2"),
    ("#e69f00", "#f0b73c"), ("#56b4e9", "#9bd7f7"), ("#4d4d4d", "#c4c9cf"), ("#999933", "#c8c860"),
    ("#332288", "#9c90e8"), ("#882255", "#d479a2"), ("#117733", "#5fbf7f"), ("#aa4499", "#d98bcb"),
)  # fmt: skip
"""For series that belong to no optimizer, in turn."""
SEQUENTIAL = (
    "#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c",
    "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725",
)  # fmt: skip
DIVERGING = ("#0b4f7d", "#2f83b8", "#8bbfdf", "#d5e6f0", "#f6f4f1", "#f7dcc8", "#efa878", "#d86a1f", "#94400a")
SHADES = (0.0, 0.4, -0.35, 0.65, -0.6)
"""How far the variants of an optimizer are mixed with the ground (above 0) or with the ink (below 0)."""
DASHES = ("", "7 3", "2.5 2.5", "9 3 2 3", "1 4", "12 4")
"""Of the sparsities in rising order; each has a mark of its own as well."""

# A verdict is a word and a sign; the colour only repeats it.
VERDICTS = {
    "reproduced": ("✓", "#009e73"),
    "above": ("▲", "#0072b2"),
    "below": ("▼", "#d55e00"),
    "same direction": ("↗", "#56b4e9"),
    "other direction": ("↘", "#cc79a7"),
    "no difference seen": ("≈", "#e69f00"),
    "not run": ("–", "#999999"),
    "": ("", "#cccccc"),
}


def shades(named: Iterable[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """The colours, on white and on dark, of (optimizer, name) pairs, by name."""
    variants: dict[str, list[str]] = {}
    for optimizer, name in dict.fromkeys(named):
        variants.setdefault(optimizer, []).append(name)
    spare = [pair for pair in SERIES if pair not in HUES.values()] or list(SERIES)
    found = {}
    for k, (optimizer, names) in enumerate(variants.items()):
        light, dark = HUES.get(optimizer, spare[k % len(spare)])
        for i, name in enumerate(names):
            shade = SHADES[i % len(SHADES)]
            ends = ("#ffffff", "#14171b") if shade > 0 else ("#000000", "#ffffff")
            found[name] = (_mix(light, ends[0], abs(shade)), _mix(dark, ends[1], abs(shade)))
    return found


def sparsities(drawn: Iterable[Mapping[str, Any]]) -> list[str]:
    """Those that occur, in rising order, dense first: the place of each decides its dash and its mark."""
    found = {str(thing["sparsity"]) for thing in drawn if thing.get("sparsity")}
    return sorted(found, key=lambda text: float(n) if (n := text.removesuffix(" %")).replace(".", "").isdigit() else -1)


def _mix(colour: str, other: str, share: float) -> str:
    pairs = [(int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)
