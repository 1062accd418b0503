"""How often something is measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple


class Rounds(NamedTuple):
    """As many as begin within `within_s`, but at least `least` and at most `most`: slow machines do fewer."""

    least: int
    most: int
    within_s: float
    #: For so long at most whatever is measured is made warm before.
    warm_up_s: float = 120.0

    def numbers(self) -> Iterator[int]:
        """The number of each round, as it begins. The first one is 0."""
        began_s = time.monotonic()
        for number in range(self.most):
            if number >= self.least and time.monotonic() - began_s > self.within_s:
                return
            yield number


def exactly(count: int, warm_up_s: float = 120.0) -> Rounds:
    return Rounds(count, count, 0.0, warm_up_s)
