"""A queue that is filled at the worst moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

Item = TypeVar("Item")


class FilledAtTheEnd(deque[Item]):
    """A queue to which something is added right after it was found to be empty."""

    def __init__(self, late: Callable[[], None]) -> None:
        super().__init__()
        self._late: Callable[[], None] | None = late

    def __bool__(self) -> bool:
        if len(self) > 0:
            return True
        late, self._late = self._late, None
        if late is not None:
            late()
        return False
