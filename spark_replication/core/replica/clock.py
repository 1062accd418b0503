"""Whether a broker's clock can be believed: ZooKeeper's is a second one, by which it stamped the broker's registration.

| the stamp lies                                    | the clock is  | then                                             |
| ------------------------------------------------- | ------------- | ------------------------------------------------ |
| between the registration's request and its answer | 0 ahead       | believed                                         |
| at most DIFFERENCE_MS_MAX outside of that         | ahead, behind | believed                                         |
| further below                                     | ahead         | not believed: nothing goes by time on this one   |
| further above                                     | behind        | the same: nobody knows which of the two is right |

A clock that is days ahead would end the whole log but for its last segment, and make every idempotent producer that
does not write at this moment forgotten.
"""

from __future__ import annotations

from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.core.replica.retention import KEPT_FOR_EVER

DIFFERENCE_MS_MAX = 5 * 60_000
NEVER_FORGOTTEN_MS = 1 << 60


def ahead_ms(*, asked_ms: int, answered_ms: int, stamped_ms: int) -> int:
    """How far a clock is ahead of ZooKeeper's at least; below 0 if it is behind. By that clock, the registration was
    asked for and answered at these times."""
    if stamped_ms < asked_ms:
        return asked_ms - stamped_ms
    return min(0, answered_ms - stamped_ms)


def is_believed(ahead: int) -> bool:
    """ahead: as `ahead_ms` returns it."""
    return abs(ahead) <= DIFFERENCE_MS_MAX


def doubted(ahead: int) -> int:
    """The same, if it is not believed; else 0."""
    return 0 if is_believed(ahead) else ahead


def believing(settings: Settings, ahead: int) -> Settings:
    """The settings by which a broker treats its replicas: with a clock that is not believed nothing goes because of
    its age, neither segments nor idempotent producers. `retention.bytes` and `partition.producers.max` still hold."""
    if is_believed(ahead):
        return settings
    return replace(settings, retention_ms=KEPT_FOR_EVER, producer_id_expiration_ms=NEVER_FORGOTTEN_MS)
