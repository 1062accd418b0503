"""What a server counts of its requests."""

from __future__ import annotations

import time

import pytest
from pyarrow import flight

from spark_replication.errors import NotLeader, ReplicationError
from spark_replication.ports import LogSlice
from spark_replication.storage.format.index import ENTRY_BYTES
from spark_replication.transport.meter import BOUNDS_S, Meter, Moved, Took, Traffic


def test_durations_are_counted_by_the_bound_that_they_do_not_pass() -> None:
    meter = Meter(["put", "get"])
    meter.took("put", [0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1], BOUNDS_S[-1] + 1])
    meter.took("put", [])
    found = meter.durations()
    nothing = (0,) * (len(BOUNDS_S) + 1)
    assert found["get"] == Took(nothing, 0.0)
    assert found["put"].counts == (2, 1, *nothing[:-4], 1, 1)
    assert found["put"].sum_s == pytest.approx(BOUNDS_S[0] * 2.01 + BOUNDS_S[-1] * 2 + 1)


def test_a_request_is_timed_however_it_ends_and_its_refusal_is_counted() -> None:
    meter = Meter(["get"])
    with meter.timing("get"), meter.refusing("get"):
        time.sleep(0)
    with pytest.raises(NotLeader), meter.timing("get"), meter.refusing("get"):
        raise NotLeader("another leads")
    with pytest.raises(ZeroDivisionError), meter.timing("get"), meter.refusing("get"):
        raise ZeroDivisionError
    with pytest.raises(flight.FlightError), meter.timing("get"), meter.refusing("get"):
        raise flight.FlightUnauthenticatedError("it is counted already")
    assert sum(meter.durations()["get"].counts) == 4
    assert meter.refusals() == {("get", NotLeader.code): 1, ("get", ReplicationError.code): 1}


def test_what_was_moved_adds_up() -> None:
    traffic = Traffic()
    assert traffic.so_far == Moved()
    traffic.moved(batches=1, records=10, count_bytes=100)
    entries = bytes(2 * ENTRY_BYTES)
    traffic.carried(LogSlice(first_offset=5, next_offset=12, segment_base=0, entries=entries, data=b"123"))
    assert traffic.so_far == Moved(batches=3, records=17, bytes=103)
