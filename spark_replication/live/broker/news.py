"""What interrupts a broker's life, or ends it: whoever finds it out leaves a note, and the main thread reads it."""

from __future__ import annotations

import enum

import msgspec


class News(enum.Enum):
    STOP = "asked to stop"
    LEASE_EXPIRED = "no guardian has renewed the lease in time"


class RegistrationGone(msgspec.Struct, frozen=True):
    """This epoch's registration is over: its node is gone, or its session, or a proof names it that is none."""

    epoch: int


class Crashed(msgspec.Struct, frozen=True):
    """A thread ended by a mistake of ours: half a broker would be worse than none."""

    error: BaseException
