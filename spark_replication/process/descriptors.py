"""Waits for descriptors, closes them, and keeps one for when there is no other. It waits by poll, since select refuses
descriptors beyond 1,024."""

from __future__ import annotations

import os
import select
from collections.abc import Collection


def readable(descriptors: Collection[int], timeout_s: float) -> list[int]:
    """Wait for descriptors that can be read, or whose other end is gone, and return them; an empty list after
    timeout_s."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(timeout_s * 1_000)]


def close_all(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def lowest_free() -> int | None:
    """The lowest descriptor that is free: all below it are used. None: there is none."""
    number = _any()
    if number is not None:
        os.close(number)
    return number


class SpareDescriptor:
    """One for whoever has to do something without descriptors."""

    def __init__(self) -> None:
        self._number = _any()

    def give(self) -> None:
        """Frees it, if it is there."""
        if self._number is not None:
            os.close(self._number)
            self._number = None

    def keep(self) -> None:
        """Takes one again, if there is one."""
        if self._number is None:
            self._number = _any()


def _any() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
