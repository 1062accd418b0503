"""The layout: every path of the system, once. All are relative to the chroot, which Session adds."""

from __future__ import annotations

from spark_replication.model import BrokerId, TopicPartition

CLUSTER = "/cluster"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
BROKER_EPOCHS = "/brokers/epochs"
BROKER_SEQUENCE = "/brokers/seqid"
TOPICS = "/brokers/topics"
LEADER_AND_ISR = "leaderAndISR"
TOPIC_IDS = "/brokers/topic_ids"
CLUSTER_CONFIG = "/config/cluster"
TOPIC_CONFIGS = "/config/topics"
ISR_CHANGES = "/isr_change_notification"
ISR_CHANGE_PREFIX = ISR_CHANGES + "/change_"  # ZooKeeper appends the sequence number
ADMIN = "/admin"
REASSIGNED = "/admin/partitions_reassigned"
ADDED = "/admin/partitions_add"
REMOVED = "/admin/partitions_remove"
DELETE_TOPICS = "/admin/delete_topics"
PREFERRED_ELECTION = "/admin/preferred_replica_election"

# The nodes that the first controller makes, parents first. Any other parent is created in the multi() that needs it.
BASE = (
    "/brokers",
    BROKER_IDS,
    BROKER_EPOCHS,
    TOPICS,
    TOPIC_IDS,
    "/config",
    TOPIC_CONFIGS,
    ISR_CHANGES,
    ADMIN,
    REASSIGNED,
    ADDED,
    REMOVED,
    DELETE_TOPICS,
)


def broker_id(broker: BrokerId) -> str:
    return f"{BROKER_IDS}/{broker}"


def broker_epoch(broker: BrokerId) -> str:
    return f"{BROKER_EPOCHS}/{broker}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def topic_id(identity: str) -> str:
    return f"{TOPIC_IDS}/{identity}"


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def partition(of: TopicPartition) -> str:
    """The parent of leaderAndISR; it holds no data."""
    return f"{TOPICS}/{of.topic}/{of.partition}"


def leader_and_isr(of: TopicPartition) -> str:
    return f"{TOPICS}/{of.topic}/{of.partition}/{LEADER_AND_ISR}"


def isr_change(name: str) -> str:
    return f"{ISR_CHANGES}/{name}"


def deletion_mark(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"
