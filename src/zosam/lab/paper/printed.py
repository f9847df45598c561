"""A number as it was printed: "92.69 ± 0.05 (+0.38)", "4349.53 (76.67 %)" or plain "94.58"."""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBER = r"\d+(?:\.\d+)?"
FORM = re.compile(rf"({NUMBER})(?: ± ({NUMBER}))?(?: \(([+-]{NUMBER})\))?(?: \(({NUMBER}) %\))?")


@dataclass(frozen=True)
class Printed:
    """What one cell says."""

    value: float
    spread: float | None = None
    """Standard deviation over trainings."""
    gain: float | None = None
    """How much more than in the row to compare with."""
    share: float | None = None
    """Per cent of the reference."""


def parse(text: str) -> Printed | None:
    """The numbers of a printed cell; None for an empty one."""
    if not text:
        return None
    found = FORM.fullmatch(text)
    if found is None:
        raise ValueError(
            f'{text!r} is not a printed number such as "94.58", "92.69 ± 0.05 (+0.38)" or "2701 (47.60 %)"'
        )
    value, *rest = (None if part is None else float(part) for part in found.groups())
    assert value is not None
    return Printed(value, *rest)
