"""The times of a failover that a controller's log tells."""

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
