"""What a broker does periodically while it serves: how often, and when it is needed."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from spark_replication.config import Settings

TICK_MS_MAX = 1_000
LOOKS_PER_LAG = 4
COORDINATE_MS = 100  # sessions of members end so much late
TURN_MS = 100  # as long as a throttle's least part of a second
SLOW_MS = 5_000
SECRETS_MS = 1_000
TABLES_MS = 10_000
CLEAN_UP_MS = (1_000, 10_000)


class Duty(Enum):
    #: Tick: high watermarks, acknowledgements; more rarely who lags, since that look is what idle partitions cost.
    TICK = "tick"
    #: Give turns to replicas that are being copied.
    GIVE_TURNS = "give turns"
    #: Save the high watermarks.
    CHECKPOINT = "checkpoint"
    #: Try again to open or lead the replicas that a disk refused.
    TRY_REFUSED = "try refused"
    #: Read what could not be read in ZooKeeper before.
    READ_HIDDEN = "read hidden"
    #: Read which brokers are registered, and where.
    READ_BROKERS = "read brokers"
    #: Give time to the coordinators of consumer groups.
    COORDINATE = "coordinate"
    #: Tell the controller what has become of the files of secrets.
    TELL_SECRETS = "tell secrets"
    #: Look which tables are behind, and tell the controller.
    TELL_TABLES = "tell tables"
    #: Delete what has been in quarantine for long enough, and write small files that the disk refused.
    CLEAN_UP = "clean up"


class Surroundings(Protocol):
    """What a duty depends on; only what matters for that duty is asked."""

    @property
    def connected(self) -> bool:
        """To ZooKeeper."""

    @property
    def has_controller(self) -> bool: ...

    @property
    def hides(self) -> bool:
        """Something in ZooKeeper that may be this broker's could not be read."""


def period_ms(duty: Duty, settings: Settings) -> int:
    tick_ms = max(1, min(TICK_MS_MAX, settings.replica_lag_time_ms // LOOKS_PER_LAG))
    match duty:
        case Duty.TICK | Duty.TRY_REFUSED | Duty.READ_HIDDEN:
            return tick_ms
        case Duty.COORDINATE:
            return COORDINATE_MS
        case Duty.GIVE_TURNS:
            return TURN_MS
        case Duty.CHECKPOINT | Duty.READ_BROKERS:
            return SLOW_MS
        case Duty.TELL_SECRETS:
            return SECRETS_MS
        case Duty.TELL_TABLES:
            return TABLES_MS
        case Duty.CLEAN_UP:
            least_ms, most_ms = CLEAN_UP_MS
            return min(most_ms, max(least_ms, settings.log_delete_delay_ms))


def ticks_per_look(settings: Settings) -> int:
    """So that lagging followers are looked for four or five times within replica.lag.time.ms."""
    return max(1, settings.replica_lag_time_ms // LOOKS_PER_LAG // period_ms(Duty.TICK, settings))


def is_needed(duty: Duty, around: Surroundings) -> bool:
    match duty:
        case Duty.READ_HIDDEN:
            return around.hides and around.connected
        case Duty.READ_BROKERS:
            # A controller would announce it.
            return around.connected and not around.has_controller
        case _:
            return True
