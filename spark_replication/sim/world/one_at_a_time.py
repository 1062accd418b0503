"""A lock for a world of one thread, in which a wait for it would never end."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class OneAtATime:
    """engine.replica.partition.Lock."""

    def __init__(self) -> None:
        self._is_taken = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        if self._is_taken:
            assert not blocking or timeout >= 0, "somebody here has it already: nobody would give it back"
            return False
        self._is_taken = True
        return True

    def release(self) -> None:
        assert self._is_taken
        self._is_taken = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def at_once(event: Callable[[], None]) -> None:
    """engine.replica.partition.Post."""
    event()
