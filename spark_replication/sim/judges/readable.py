"""unreadable_changes_nothing: a controller that could not read something as it took over decides nothing about it, and
tells nobody of it (Z1)."""

from __future__ import annotations

from spark_replication.core.law.unreadable import Unreadable
from spark_replication.core.law.writes import (
    DeletionMark,
    PartitionRemoval,
    PartitionWrite,
    TopicRemoval,
    TopicWrite,
    Write,
)
from spark_replication.messages.commands import LeaderAndIsr
from spark_replication.model import BrokerId
from spark_replication.sim.world.world import InvariantBroken

INVARIANT = "unreadable_changes_nothing"


def check_sent(command: LeaderAndIsr, broker: BrokerId, hidden: Unreadable) -> None:
    for told in command.partitions:
        if hidden.hides(told.topic_partition):
            raise InvariantBroken(INVARIANT, f"{told.topic_partition} is told to {broker}")


def check_decided(write: Write, controller_epoch: int, hidden: Unreadable) -> None:
    partition = write.partition if isinstance(write, (PartitionWrite, PartitionRemoval)) else None
    topic = write.topic if isinstance(write, (TopicWrite, TopicRemoval, DeletionMark)) else None
    if (partition is not None and hidden.hides(partition)) or topic in hidden.topics:
        raise InvariantBroken(INVARIANT, f"controller {controller_epoch} decides {write}")
