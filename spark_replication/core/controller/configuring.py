"""What follows from a changed setting: the min ISR in leaderAndISR (I5), and the policy of unclean elections (L4)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from spark_replication.config import Settings, check_of_cluster, settings_from, with_topic
from spark_replication.core.controller import reassignment
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.plan import Decision, Reconsider, Step
from spark_replication.core.controller.settling import write_of
from spark_replication.core.controller.topics import existing
from spark_replication.core.law import acls, quotas
from spark_replication.core.law.acls import ACLS
from spark_replication.core.law.partition_change import effective_min_isr, with_min_isr
from spark_replication.core.law.quotas import QuotaTable, with_quota
from spark_replication.core.law.writes import ClusterConfigWrite, PartitionWrite, TopicConfigWrite
from spark_replication.core.tables.fitting import check_fits
from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.messages.requests import ChangeAcls, Configure, SetQuota
from spark_replication.model import ClusterSettings, Scalar

# Partitions whose leaderAndISR is rewritten in one multi() with the setting that calls for it; the others follow.
CONFIGURED_TOGETHER_MAX = 200
_STRATEGY, _ENABLE = "unclean.recovery.strategy", "unclean.leader.election.enable"


def configure_topic(cluster: ClusterState, topic: str, asked: Configure) -> Decision:
    existing(topic, cluster)
    config = cluster.topics[topic].config
    settings = _changed(config.settings, asked.settings)
    check_fits(topic, config.schema, with_topic(cluster.settings, settings), cluster.fits_table)
    write = TopicConfigWrite(topic=topic, config=replace(config, settings=settings))
    writes = _min_isr_writes(cluster, topic, with_topic(cluster.settings, settings))
    step = Step((write, *writes[:CONFIGURED_TOGETHER_MAX]))
    return Decision(steps=(step,), then=(Reconsider((topic,)),))


def configure_cluster(cluster: ClusterState, asked: Configure) -> Decision:
    """Change the cluster's settings. A flip of unclean.recovery.enabled converts the settings of the one policy of
    unclean elections into those of the other."""
    check_of_cluster(asked.settings)
    changed = _changed(cluster.stored_settings.settings, asked.settings)
    ACLS.said(str(changed.get(acls.SETTING, "")))
    QuotaTable(str(changed.get(quotas.SETTING, "")))
    before, after = cluster.settings, settings_from(cluster.defaults, changed)
    topics = {name: known.config.settings for name, known in sorted(cluster.topics.items())}
    if before.unclean_recovery_enabled != after.unclean_recovery_enabled:
        in_force: dict[str, Scalar] = {
            _STRATEGY: before.unclean_recovery_strategy,
            _ENABLE: before.unclean_leader_election_enable,
        }
        to_recovery = after.unclean_recovery_enabled
        changed = _changed({**changed, **_converted(in_force, to_recovery=to_recovery)}, asked.settings)
        after = settings_from(cluster.defaults, changed)
        topics = {name: {**found, **_converted(found, to_recovery=to_recovery)} for name, found in topics.items()}
    if after.table and (not before.table or before.table_partition_by != after.table_partition_by):
        for name, settings in topics.items():
            if name != GROUPS_TOPIC:
                check_fits(name, cluster.topics[name].config.schema, with_topic(after, settings), cluster.fits_table)
    config_writes = [
        TopicConfigWrite(topic=name, config=replace(cluster.topics[name].config, settings=settings))
        for name, settings in topics.items()
        if settings != cluster.topics[name].config.settings
    ]
    writes = [
        write
        for name, settings in topics.items()
        for write in _min_isr_writes(cluster, name, with_topic(after, settings))
    ]
    cluster_write = ClusterConfigWrite(config=ClusterSettings(settings=changed))
    step = Step((cluster_write, *config_writes, *writes[:CONFIGURED_TOGETHER_MAX]))
    return Decision(steps=(step,), then=(Reconsider(tuple(topics)),))


def change_acls(cluster: ClusterState, asked: ChangeAcls) -> Decision:
    """Neither topics nor replicas have to do with it."""
    changed = ACLS.said(cluster.settings.security_acls).union(asked.add).difference(asked.remove)
    return _with_setting(cluster, acls.SETTING, ACLS.text(changed))


def set_quota(cluster: ClusterState, asked: SetQuota) -> Decision:
    """Neither topics nor replicas have to do with it."""
    text = with_quota(cluster.settings.security_quotas, asked.principal, asked.kind, asked.limit)
    return _with_setting(cluster, quotas.SETTING, text)


def _with_setting(cluster: ClusterState, name: str, value: str) -> Decision:
    config = ClusterSettings(settings={**cluster.stored_settings.settings, name: value})
    return Decision(steps=(Step((ClusterConfigWrite(config=config),)),))


def _converted(settings: Mapping[str, Scalar], *, to_recovery: bool) -> dict[str, Scalar]:
    """The one setting, if it is set, converted into the other."""
    if to_recovery:
        return {_STRATEGY: "proactive" if settings[_ENABLE] else "balanced"} if _ENABLE in settings else {}
    return {_ENABLE: settings[_STRATEGY] == "proactive"} if _STRATEGY in settings else {}


def _changed(before: Mapping[str, Scalar], changes: Mapping[str, Scalar | None]) -> dict[str, Scalar]:
    merged = {**before, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _min_isr_writes(cluster: ClusterState, topic: str, settings: Settings) -> list[PartitionWrite]:
    """The writes that bring the min ISR in force into leaderAndISR (I5)."""
    writes = []
    for partition in cluster.all_partitions(topic):
        stored = cluster.partitions.get(partition)
        if stored is not None and not cluster.unreadable.hides(partition):
            factor = reassignment.replication_factor(cluster.topics[topic].state, partition.partition)
            after = with_min_isr(stored.state, effective_min_isr(settings.min_insync_replicas, factor))
            if after != stored.state:
                writes.append(write_of(cluster, partition, stored, after))
    return writes
