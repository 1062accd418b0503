"""Measures the failover of a broker that leads a third of all partitions: from its kill until every change is stored,
every new leader has confirmed, each of them has acknowledged a write, and the Delta tables show them all as leaders.

No measured process is asked anything meanwhile. Afterwards ZooKeeper tells when each leaderAndISR was written, the
controller's log when each broker's answer came, and the table's own history what it showed since when. The first writes
begin when the last answer has come: they create as many files as there are partitions, beside the tables.

One kill says little on a machine with few processors: whoever comes first there makes the others late. So several are
measured, in turns where two ways are compared.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec
from deltalake import DeltaTable

from spark_replication.admin.bench.cluster import (
    HEALTHY_TIMEOUT_S,
    TOPIC,
    ControllerLog,
    Filled,
    FirstSeen,
    Stored,
    eventually,
    sequential_write_s,
    session_with,
    stored,
    write_to_each,
)
from spark_replication.admin.bench.replicate import BROKERS, Progress
from spark_replication.admin.bench.viewers import viewers
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.mirror.delta.reading import rows_of
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.model import BrokerId, Epoch, PartitionState, TopicPartition, decode, encode
from spark_replication.zk import paths
from spark_replication.zk.operations import Node
from spark_replication.zk.session import Session


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds are those since the kill, but for sequential_ms. Of several kills they are the medians."""

    partitions: int
    told_by: str
    #: How many pages were open meanwhile.
    pages: int
    kills: int = 1
    #: How many partitions the dead broker led.
    led: int
    #: How many leaderAndISRs changed.
    changed: int
    #: The broker's registration is gone.
    gone_ms: int
    #: The last new leader of what the dead broker led is stored.
    elected_ms: int
    #: The last new leader has confirmed.
    active_ms: int
    #: The table shows every new leader as confirmed.
    shown_ms: int
    #: Every new leader has acknowledged a write to all replicas in sync.
    written_ms: int | None
    #: The last changed leaderAndISR is stored, with the shrunken ISRs of living leaders, too.
    stored_ms: int
    #: How long as many conditional writes take, one at a time.
    sequential_ms: int
    #: sequential_ms divided by what storing took.
    ratio: float
    #: How long the broker took to be back, once it was started again.
    rejoined_s: float
    #: What elected and active took since the broker was gone, by what they took without a page; None without a page.
    elected_by_no_page: float | None = None
    active_by_no_page: float | None = None


COLUMNS = Figures.__struct_fields__


def failover(
    filled: Filled, progress: Progress, *, writes: bool = True, pages: int = 0, rounds: int = 1
) -> Iterator[Figures]:
    """Lose the leader of partition 0, first with a death report, then with the session timeout alone. With `pages` each
    is measured in turns, without them and with so many open.

    For the session timeout the broker is stopped, not killed, as if its host were lost: its guardian sees nothing, and
    no connection is reset or refused, which the controller would take for a death, too.
    """
    cluster = filled.cluster
    ways = [(reported, shown) for reported in (True, False) for shown in sorted({0, pages})]
    kills: dict[tuple[bool, int], list[Figures]] = {way: [] for way in ways}
    with session_with(cluster) as session:
        for number in range(rounds):
            for reported, shown in ways if number % 2 == 0 else reversed(ways):
                with viewers(cluster.page, shown):
                    figures = killed(cluster, session, shown, reported=reported, writes=writes, progress=progress)
                kills[reported, shown].append(figures)
                cluster.admin.elect_leaders("preferred")
                cluster.wait_healthy(HEALTHY_TIMEOUT_S)
    for (reported, shown), found in kills.items():
        yield medians(found, kills[reported, 0] if shown else None)


def medians(kills: Sequence[Figures], without_page: Sequence[Figures] | None) -> Figures:
    """What these kills have in common, and the medians of what they took, by those without a page."""

    def median(name: str) -> float:
        return float(statistics.median(getattr(each, name) for each in kills))

    times = [name for name in COLUMNS if name.endswith("_ms") and getattr(kills[0], name) is not None]
    found = msgspec.structs.replace(
        kills[0],
        kills=len(kills),
        **{name: round(median(name)) for name in times},
        ratio=round(median("ratio"), 1),
        rejoined_s=round(median("rejoined_s"), 1),
    )
    if without_page is None:
        return found
    return msgspec.structs.replace(
        found,
        elected_by_no_page=round(_since_gone(kills, "elected_ms") / _since_gone(without_page, "elected_ms"), 2),
        active_by_no_page=round(_since_gone(kills, "active_ms") / _since_gone(without_page, "active_ms"), 2),
    )


def _since_gone(kills: Sequence[Figures], name: str) -> float:
    """At least a millisecond: both times are in whole ones."""
    return max(1.0, float(statistics.median(getattr(each, name) - each.gone_ms for each in kills)))


def killed(
    cluster: LocalCluster, session: Session, pages: int, *, reported: bool, writes: bool, progress: Progress
) -> Figures:
    """Lose the leader of partition 0, and measure what follows until it is back and in sync."""
    before = stored(session)
    first = TopicPartition(TOPIC, 0)
    victim = before[first].state.leader
    assert victim is not None, "a healthy cluster's partitions are led"
    led = {partition for partition, found in before.items() if found.state.leader == victim}
    told_by = "report" if reported else "session"
    progress(f"broker {victim} is lost, which leads {len(led)} of {len(before)} partitions; told by {told_by}")
    gone = FirstSeen(session, paths.broker_id(victim), lambda node: node is None)
    elected = FirstSeen(session, paths.leader_and_isr(first), partial(_is_led_by_another, first, victim))
    log = ControllerLog(cluster.directory / "controller" / "log")
    killed_s = time.time()
    if reported:
        cluster.kill_broker(victim)
    else:
        os.kill(cluster.brokers[victim].pid, signal.SIGSTOP)
    gone_s = gone.wait("is gone")
    elected.wait("has another leader")
    assert elected.node is not None, "it is led"
    confirmed = partial(first_told, log, elected.node.modified_ms / 1_000)
    eventually(lambda: len(confirmed()) == BROKERS - 1, "all new leaders have confirmed")
    active_s = max(confirmed().values())
    states = {partition: found.state for partition, found in stored(session).items() if partition in led}
    if writes:
        write_to_each(cluster, states)
    written_s = time.time()
    shown_s = confirmed_in_table_s(
        cluster.mirror_path, {partition: state.leader_epoch for partition, state in states.items()}
    )
    after = stored(session)
    changed = [found for partition, found in after.items() if found.state != before[partition].state]
    _check(victim, led, after)
    stored_s = max(found.at_s for found in changed)
    sequential_s = sequential_write_s(session, encode(changed[0].state), len(changed))
    if not reported:
        cluster.kill_broker(victim)
    began = time.perf_counter()
    cluster.restart_broker(victim)
    cluster.wait_healthy(HEALTHY_TIMEOUT_S)
    found = Figures(
        partitions=len(before),
        told_by=told_by,
        pages=pages,
        led=len(led),
        changed=len(changed),
        gone_ms=round(1_000 * (gone_s - killed_s)),
        elected_ms=round(1_000 * (max(after[partition].at_s for partition in led) - killed_s)),
        active_ms=round(1_000 * (active_s - killed_s)),
        shown_ms=round(1_000 * (shown_s - killed_s)),
        written_ms=round(1_000 * (written_s - killed_s)) if writes else None,
        stored_ms=round(1_000 * (stored_s - killed_s)),
        sequential_ms=round(1_000 * sequential_s),
        ratio=round(sequential_s / max(stored_s - gone_s, 0.001), 1),
        rejoined_s=round(time.perf_counter() - began, 1),
    )
    elected_ms, active_ms = found.elected_ms - found.gone_ms, found.active_ms - found.gone_ms
    progress(f"since it was gone, with {pages} pages open: elected {elected_ms} ms, active {active_ms} ms")
    return found


def _is_led_by_another(partition: TopicPartition, victim: BrokerId, node: Node | None) -> bool:
    return node is not None and decode(node.data, PartitionState, str(partition)).leader != victim


def first_told(log: ControllerLog, since_s: float) -> dict[BrokerId, float]:
    """When each broker first answered after the election. A living broker is told of what it leads by the election
    before anything else. Its answers to earlier commands may come at any time before that."""
    log.read()
    return {told.broker: told.at_s for told in reversed(log.told) if told.at_s >= since_s}


def confirmed_in_table_s(mirror_path: str, leader_epochs: Mapping[TopicPartition, Epoch]) -> float:
    """When the table came to show that the leader of each partition has confirmed at this epoch."""
    table = DeltaTable(PARTITIONS.path(mirror_path))

    def shows_all() -> bool:
        rows = rows_of(table, ["topic", "partition", "active_epoch"], "NOT deleted").to_pylist()
        shown = {TopicPartition(row["topic"], row["partition"]): row["active_epoch"] for row in rows}
        return all(shown.get(partition) == epoch for partition, epoch in leader_epochs.items())

    def newest_shows_all() -> bool:
        table.update_incremental()
        return shows_all()

    eventually(newest_shows_all, "the table shows every new leader as confirmed")
    shown_s = 0.0
    for commit in table.history():  # the newest first
        table.load_as_version(commit["version"])
        if not shows_all():
            break
        shown_s = commit["timestamp"] / 1_000
    return shown_s


def _check(victim: BrokerId, led: set[TopicPartition], after: dict[TopicPartition, Stored]) -> None:
    for partition in led:
        leader = after[partition].state.leader
        assert leader not in (None, victim), f"{partition} is led by {leader}"
