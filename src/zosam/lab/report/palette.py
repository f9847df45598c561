"""Colours that colour-blind readers can tell apart (Okabe and Ito; viridis), for the page and for print."""

from __future__ import annotations

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d", "#999933")
SERIES_ON_DARK = ("#4a9fe0", "#f07d33", "#25bd92", "#de95bf", "#efb232", "#9bd7f7", "#b8b8b8", "#c8c860")
SEQUENTIAL = (
    "#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c",
    "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725",
)  # fmt: skip
DIVERGING = ("#0b4f7d", "#2f83b8", "#8bbfdf", "#d5e6f0", "#f6f4f1", "#f7dcc8", "#efa878", "#d86a1f", "#94400a")

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
