"""How replicas are guarded, and how who looks after many of them takes one guard after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Guards = Callable[[], AbstractContextManager[object]]
# Within, whether the guard is held: who looks after many partitions may not wait for one.
Holds = Callable[[AbstractContextManager[object]], AbstractContextManager[bool]]


@contextmanager
def waiting(guard: AbstractContextManager[object]) -> Iterator[bool]:
    """Holds it, however long that takes."""
    with guard:
        yield True
