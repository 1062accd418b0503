"""What a controller tells of its cluster and of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.errors import StorageFailed
from spark_replication.live.controller.metrics import ControllerView, controller_exposition
from spark_replication.mirror.telling.feed import MirrorThread
from spark_replication.transport.meter import Meter
from spark_replication.transport.security.quotas import Quotas
from tests.scrapes import Scrape
from tests.unit.core.stories import cluster_of, state, topic

ILL = cluster_of(
    1,
    topics={"foo": topic((1, 2), (1, 2), (2,))},
    states={"foo-0": state(1, [1], elr=[2]), "foo-1": state(None, [], elr=[2]), "foo-2": state(1, [1, 2])},
)
OF_A_PARTITION = {f"spark_replication_partition_{name}" for name in ("leader", "leader_epoch", "isr_size")}


def mirror_of(*, pending: int = 0, error: Exception | None = None) -> MirrorThread:
    return cast("MirrorThread", SimpleNamespace(lag_ms=lambda: 1_500, pending=pending, error=error))


def scraped(
    cluster: ClusterState | None = ILL,
    mirror: MirrorThread | None = None,
    *,
    silent_s: float = 0.0,
    secrets: str = "",
    per_partition: bool = False,
) -> Scrape:
    meter = Meter(["metadata"])
    meter.took("metadata", [0.02, 0.2])
    meter.refused("metadata", "NOT_CONTROLLER")
    view = ControllerView(cluster, mirror, silent_s, secrets, meter, Quotas())
    return Scrape.of({"controller": controller_exposition(view, per_partition=per_partition)})


def test_the_names_of_kip_966_are_kept() -> None:
    found = scraped()
    assert found.value("global_under_min_isr_partition_count") == 2
    assert found.value("unclean_recovery_partitions_count") == 0
    assert found.value("manual_leader_election_required_partition_count") == 0
    assert found.value("unclean_recovery_finished_count") == 0
    assert found.value("electable_leaders") == 5


def test_files_of_secrets_that_are_not_used() -> None:
    for cluster in (ILL, None):
        assert scraped(cluster).value("secrets_refused") == 0
        assert scraped(cluster, secrets="token is open to every user").value("secrets_refused") == 1


def test_what_is_wrong_with_partitions_and_brokers() -> None:
    found = scraped()
    assert found.value("active_controller") == 1
    names = ("partitions", "offline_partitions", "under_replicated_partitions", "registered_brokers", "missing_brokers")
    assert [found.value(name) for name in names] == [3, 1, 2, 1, 1]
    assert found.value("leaderless_partitions", waiting_for="fenced_elr") == 1
    assert found.value("leaderless_partitions", waiting_for="manual") == 0
    assert {found.value("elections_total", how=how) for how in ("isr", "elr", "unclean", "designated")} == {0}


def test_one_that_stands_by_tells_of_itself_alone() -> None:
    found = scraped(None, silent_s=2.5)
    assert (found.value("active_controller"), found.value("zookeeper_silent_seconds")) == (0, 2.5)
    assert not {name for name in found.names if "partition" in name or "mirror" in name}


def test_requests_are_a_histogram_and_refusals_a_count() -> None:
    found = scraped()
    assert [found.value("request_seconds_bucket", le=le) for le in ("0.01", "0.025", "0.25", "+Inf")] == [0, 1, 2, 2]
    assert found.value("request_seconds_count", request="metadata") == 2
    assert found.value("request_seconds_sum", request="metadata") == pytest.approx(0.22)
    assert found.value("refused_requests_total", request="metadata", code="NOT_CONTROLLER") == 1


def test_the_mirror() -> None:
    assert not {name for name in scraped(mirror=None).names if "mirror" in name}
    well, ill = scraped(mirror=mirror_of()), scraped(mirror=mirror_of(pending=7, error=StorageFailed("no")))
    names = ("mirror_lag_seconds", "mirror_pending_rows", "mirror_failed")
    assert [well.value(name) for name in names] == [1.5, 0, 0]
    assert [ill.value(name) for name in names] == [1.5, 7, 1]


def test_partitions_are_told_of_one_by_one_only_if_somebody_asks() -> None:
    assert not scraped().names & OF_A_PARTITION
    found = scraped(per_partition=True)
    assert found.names >= OF_A_PARTITION
    assert [found.value("partition_leader", topic="foo", partition=number) for number in "012"] == [1, -1, 1]
    assert found.value("partition_electable_leaders", partition="0") == 2
    assert found.value("partition_isr_size", partition="0") == 1


def test_without_asking_the_number_of_series_does_not_depend_on_that_of_partitions() -> None:
    many = cluster_of(
        1,
        topics={name: topic(*[(1,)] * 50, name=name) for name in ("foo", "bar")},
        states={f"{name}-{number}": state(1, [1], min_isr=1) for name in ("foo", "bar") for number in range(50)},
    )
    assert len(scraped(many).samples) == len(scraped().samples)


def test_the_process_itself_is_told_of() -> None:
    assert scraped().named("process_resident_memory_bytes")[0].value > 1 << 20
