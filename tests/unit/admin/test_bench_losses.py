"""The times of a failover that a controller's log tells, and what follows from them."""

from __future__ import annotations

from pathlib import Path

from spark_replication.admin.bench.losses import (
    ACTIVE,
    CHANGED,
    ELECTED,
    GONE,
    LED,
    SEQUENTIAL,
    SEQUENTIAL_RATIO,
    SHOWN,
    SINCE_GONE,
    STORED,
    of_loss,
)
from spark_replication.admin.bench.zookeeper_view import ControllerLog


def test_who_answers_late_to_what_it_was_told_before_the_election_has_not_confirmed_its_new_partitions(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    path.touch()
    log = ControllerLog(path)
    said = "2026-11-24 00:00:{at} INFO x broker {broker} leads 5 of 10 partitions as told"
    lines = [said.format(at=at, broker=broker) for at, broker in (("09,990", 2), ("10,020", 3), ("10,050", 3))]
    path.write_text("".join(f"{line}\n" for line in lines))
    log.read()
    election_s = log.told[0].at_s + 0.010

    assert log.first_told(election_s) == {3: log.told[1].at_s}
    with path.open("a") as more:
        print(said.format(at="10,030", broker=2), file=more)
    assert set(log.first_told(election_s)) == {2, 3}


def test_what_followed_is_told_since_the_broker_was_gone_too_at_least_a_millisecond() -> None:
    """ZooKeeper tells times in whole ones."""
    took_ms = {GONE: 100.0, ELECTED: 260.0, ACTIVE: 400.0, STORED: 300.0, SHOWN: 900.0}
    found = of_loss(took_ms, led=10, changed=30, sequential_ms=700.0)
    assert {measure: found[measure] for measure in took_ms} == took_ms
    assert [found[SINCE_GONE[measure]] for measure in (ELECTED, ACTIVE, STORED)] == [160.0, 300.0, 200.0]
    assert (found[LED], found[CHANGED], found[SEQUENTIAL], found[SEQUENTIAL_RATIO]) == (10, 30, 700.0, 3.5)
    at_once = of_loss({**took_ms, ELECTED: 100.0, STORED: 100.0}, led=10, changed=30, sequential_ms=700.0)
    assert (at_once[SINCE_GONE[ELECTED]], at_once[SEQUENTIAL_RATIO]) == (1.0, 700.0)
