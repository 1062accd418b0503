"""What follows from a broker's answer to a LeaderAndIsr, partition by partition (B4)."""

from __future__ import annotations

import msgspec

from spark_replication.decoding import error_of
from spark_replication.errors import EpochBehindLog, StorageFailed
from spark_replication.messages.commands import CommandAnswer, LeaderAndIsr, PartitionCommand
from spark_replication.messages.envelope import NONE
from spark_replication.model import BrokerId, ReplicaOf, TopicPartition


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    #: The broker leads these.
    confirmed: tuple[PartitionCommand, ...]
    #: Its disk cannot hold these: the controller decides who else can.
    failed: tuple[ReplicaOf, ...]
    #: What is to be sent again, unless there is something newer to send.
    again: LeaderAndIsr | None
    #: Its logs of these have a later leader epoch than the one commanded: the last of each (Z2).
    ahead: dict[ReplicaOf, int]
    #: Refused for good, with the error codes.
    refused: dict[TopicPartition, str]


def outcome(broker: BrokerId, command: LeaderAndIsr, answer: CommandAnswer) -> Outcome:
    confirmed: list[PartitionCommand] = []
    failed: list[ReplicaOf] = []
    again: list[PartitionCommand] = []
    ahead: dict[ReplicaOf, int] = {}
    refused: dict[TopicPartition, str] = {}
    for told in command.partitions:
        code = answer.errors.get(str(told.topic_partition), NONE)
        if code == NONE:
            if told.state.leader == broker:
                confirmed.append(told)
        elif code == StorageFailed.code:
            failed.append(ReplicaOf(told.topic_partition, told.topic_id))
        elif code == EpochBehindLog.code:
            replica = ReplicaOf(told.topic_partition, told.topic_id)
            ahead[replica] = answer.last_epochs.get(str(told.topic_partition), told.state.leader_epoch)
        elif error_of(code, "").retriable:
            again.append(told)
        else:
            refused[told.topic_partition] = code
    return Outcome(
        confirmed=tuple(confirmed),
        failed=tuple(failed),
        again=msgspec.structs.replace(command, partitions=tuple(again), init=False) if again else None,
        ahead=ahead,
        refused=refused,
    )
