"""The cards of the sparse methods say what the methods do where the papers left it to their code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zosam.names import default_of
from zosam.sparse import DSR, MEST, SNIP, GraSP

PAGE = (Path(__file__).parents[2] / "docs" / "sparse.md").read_text("utf-8")
CARDS = {name: " ".join(card.split()) for name, card in re.findall(r"^#### (.+)\n((?:(?!#).*\n)+)", PAGE, re.MULTILINE)}


def percent(share):
    return f"{100 * share:.0f} %"


@pytest.mark.parametrize(
    ("card", "says"),
    [
        ("DSR", f"`drop_fraction` (aimed at, {percent(default_of(DSR, 'drop_fraction'))})"),
        ("DSR", "first and last layer and shortcuts dense"),
        ("SNIP", f"on {SNIP.per_class} pictures of each class"),
        ("GraSP", f"on {GraSP.per_class} pictures of each class with the logits divided by {GraSP.temperature:g}"),
        ("MEST", f"{percent(MEST.unless_told(0.9)['extra'])} more at 90 % sparsity"),
        ("MEST", f"{percent(MEST.unless_told(0.95)['extra'])} at 95 %"),
        ("SNFS", "masks move once an epoch"),
        ("Top-KAST", "shrinks 1/density times as fast"),
    ],
)
def test_a_card_says_it(card, says):
    assert says in CARDS[card]
