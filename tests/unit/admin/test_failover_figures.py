"""The times of a failover that a controller's log tells, and what is said of several."""

from __future__ import annotations

from pathlib import Path

from spark_replication.admin.bench import failover
from spark_replication.admin.bench.cluster import ControllerLog


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

    assert failover.first_told(log, election_s) == {3: log.told[1].at_s}
    with path.open("a") as more:
        print(said.format(at="10,030", broker=2), file=more)
    assert set(failover.first_told(log, election_s)) == {2, 3}


def kill(elected_ms: int, active_ms: int, *, pages: int = 0, written_ms: int | None = None) -> failover.Figures:
    return failover.Figures(
        partitions=30,
        told_by="report",
        pages=pages,
        led=10,
        changed=30,
        gone_ms=100,
        elected_ms=elected_ms,
        active_ms=active_ms,
        shown_ms=900,
        written_ms=written_ms,
        stored_ms=500,
        sequential_ms=700,
        ratio=2.0,
        rejoined_s=1.0,
    )


def test_of_several_kills_the_medians_are_told() -> None:
    found = failover.medians([kill(200, 400), kill(300, 900), kill(260, 500)], None)
    assert (found.kills, found.elected_ms, found.active_ms, found.written_ms) == (3, 260, 500, None)
    assert (found.elected_by_no_page, found.active_by_no_page) == (None, None)


def test_what_pages_cost_is_told_by_what_it_takes_without_them_since_the_broker_was_gone() -> None:
    without = [kill(200, 300), kill(300, 500)]
    found = failover.medians([kill(250, 400, pages=20, written_ms=800)], without)
    assert (found.pages, found.kills, found.written_ms) == (20, 1, 800)
    assert (found.elected_by_no_page, found.active_by_no_page) == (1.0, 1.0)
    slower = failover.medians([kill(400, 700, pages=20)], without)
    assert (slower.elected_by_no_page, slower.active_by_no_page) == (2.0, 2.0)


def test_what_took_less_than_a_millisecond_took_one() -> None:
    """ZooKeeper tells times in whole ones."""
    found = failover.medians([kill(102, 103, pages=20)], [kill(100, 100)])
    assert (found.elected_by_no_page, found.active_by_no_page) == (2.0, 3.0)
