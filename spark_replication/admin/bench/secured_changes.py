"""Measures what TLS to ZooKeeper costs when leadership moves: a take-over and a failover, in turns in a cluster of
security.mode token, whose ZooKeeper is reached by TLS alone, and in one of none."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import msgspec

from spark_replication.admin.bench import failover, takeover
from spark_replication.admin.bench.cluster import HEALTHY_TIMEOUT_S, Filled, filled, session_with
from spark_replication.admin.bench.replicate import Progress
from spark_replication.admin.bench.secured import settings_of_modes
from spark_replication.config import SecurityMode

MODES: tuple[SecurityMode, SecurityMode] = ("none", "token")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    #: What took so long: from the kill of a controller or, without the time until it is missed, of a broker.
    what: str
    partitions: int
    #: Medians of the rounds.
    none_ms: float
    token_ms: float
    #: That with TLS to ZooKeeper by that without, of each round: the median.
    ratio: float


COLUMNS = Change.__struct_fields__


def secured_changes(partitions: int, *, session_ms: int, rounds: int, progress: Progress) -> Iterator[Change]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        settings = settings_of_modes(directory)
        clusters = {}
        for mode in MODES:
            progress(f"security.mode={mode}: three brokers, {partitions} partitions")
            clusters[mode] = stack.enter_context(filled(partitions, session_ms, progress, settings[mode]))
        took: list[dict[SecurityMode, Mapping[str, float]]] = []
        for number in range(rounds):
            turns = MODES if number % 2 == 0 else MODES[::-1]
            progress(f"round {number + 1} of {rounds}")
            took.append({mode: _changes(clusters[mode], progress) for mode in turns})
    none, token = MODES
    for what in took[0][none]:
        yield Change(
            what=what,
            partitions=partitions,
            none_ms=median(each[none][what] for each in took),
            token_ms=median(each[token][what] for each in took),
            ratio=round(median(each[token][what] / each[none][what] for each in took), 2),
        )


def _changes(many: Filled, progress: Progress) -> Mapping[str, float]:
    """What each change took, in milliseconds: at least one."""
    cluster = many.cluster
    with session_with(cluster) as session:
        assert cluster.controller_pid is not None, "a healthy cluster has a controller"
        taken = takeover.killed(
            session,
            cluster.directory / "controller" / "log",
            cluster.controller_pid,
            successor="restarted",
            partitions=many.partitions,
            session_ms=many.session_ms,
        )
        cluster.wait_healthy(HEALTHY_TIMEOUT_S)
        lost = failover.killed(cluster, session, 0, reported=True, writes=False, progress=progress)
    cluster.admin.elect_leaders("preferred")
    cluster.wait_healthy(HEALTHY_TIMEOUT_S)
    return {
        "take-over: won": max(1, taken.won_ms),
        "take-over: loaded": max(1, taken.loaded_ms),
        "take-over: told to all": max(1, taken.told_ms),
        "failover: elected": max(1, lost.elected_ms - lost.gone_ms),
        "failover: active": max(1, lost.active_ms - lost.gone_ms),
        "failover: all stored": max(1, lost.stored_ms - lost.gone_ms),
    }
