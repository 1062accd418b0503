"""A3: bytes left, and time left."""

from __future__ import annotations

import pytest

from spark_replication.core.replica.copying import Pace, left_of, observed, time_left_ms
from spark_replication.messages.descriptions import CopySize, ReplicaSize
from tests.unit.core.stories import FOO_ID, command, state

BEGUN = Pace(bytes_left=10_000, since_ms=1_000)


@pytest.mark.parametrize(
    ("pace", "bytes_left", "now_ms", "after"),
    [
        (None, 10_000, 1_000, BEGUN),
        (BEGUN, 9_000, 5_999, BEGUN),
        (BEGUN, 5_000, 6_000, Pace(5_000, 6_000, 1_000)),
        (BEGUN, 5_000, 11_000, Pace(5_000, 11_000, 500)),
        # More was appended than copied.
        (BEGUN, 20_000, 6_000, Pace(20_000, 6_000, -2_000)),
        # The clock was set back: what was known stays known.
        (Pace(5_000, 6_000, 1_000), 4_000, 5_000, Pace(4_000, 5_000, 1_000)),
    ],
)
def test_the_pace_is_what_the_last_observation_found(
    pace: Pace | None, bytes_left: int, now_ms: int, after: Pace
) -> None:
    assert observed(pace, bytes_left, now_ms) == after


@pytest.mark.parametrize(
    ("bytes_left", "bytes_per_second", "left_ms"),
    [(0, None, 0), (0, -5, 0), (500, 1_000, 500), (500, None, None), (500, 0, None), (500, -5, None)],
)
def test_the_time_that_is_left_is_unknown_where_it_would_never_end(
    bytes_left: int, bytes_per_second: int | None, left_ms: int | None
) -> None:
    assert time_left_ms(bytes_left, bytes_per_second) == left_ms


def copies(**lacks: tuple[int, int | None]) -> ReplicaSize:
    found = {int(name[1:]): CopySize(bytes_left=left, bytes_per_second=pace) for name, (left, pace) in lacks.items()}
    return ReplicaSize(topic="foo", partition=0, topic_id=FOO_ID, leads=True, bytes=9_000, copies=found)


@pytest.mark.parametrize(
    ("leaders", "isr", "left"),
    [
        (copies(b4=(3_000, 1_000), b5=(2_000, 500)), [1, 2], (5_000, 4_000)),
        (copies(b4=(3_000, 1_000)), [1, 2, 5], (3_000, 3_000)),
        # It waits for something else: one of the target that is down.
        (copies(), [1, 4, 5], (0, 0)),
        (copies(b4=(3_000, 1_000), b5=(2_000, None)), [1, 2], (5_000, None)),
        (copies(b4=(0, None), b5=(0, None)), [1, 2], (0, 0)),
        # Its leader has not heard of all of it yet, or does not answer.
        (copies(b4=(3_000, 1_000)), [1, 2], (None, None)),
        (None, [1, 2], (None, None)),
        (None, [1, 4, 5], (0, 0)),
    ],
)
def test_what_is_left_of_a_reassignment_is_what_its_copies_lack(
    leaders: ReplicaSize | None, isr: list[int], left: tuple[int | None, int | None]
) -> None:
    moving = command(state(1, isr), replicas=(4, 5, 1, 2), adding=(4, 5), removing=(1, 2))
    assert left_of(moving, leaders) == left
