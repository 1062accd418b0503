"""Waits for descriptors, and closes them. It uses poll, since select refuses descriptors beyond 1,024."""

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
