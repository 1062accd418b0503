"""What a table's writer tells leaders of their partitions: how far the table has them (TB4)."""

from __future__ import annotations

from spark_replication.engine.replica.partition import FindPartition
from spark_replication.errors import ReplicationError, UnknownTopicOrPartition
from spark_replication.messages.records import Refusal
from spark_replication.messages.tables import TableEndsTaken, TellTableEnds
from spark_replication.model import TopicPartition


def take_table_ends(find: FindPartition, told: TellTableEnds) -> TableEndsTaken:
    errors = {}
    for each in told.ends:
        name = TopicPartition(told.topic, each.partition)
        try:
            with find(name) as replica:
                if replica.topic_id != told.topic_id:
                    raise UnknownTopicOrPartition(f"{name} is of another topic of that name: ask for its metadata")
                replica.told_of_table(each.leader_epoch, each.end)
        except ReplicationError as error:
            errors[each.partition] = Refusal(error=error.code, message=error.message, retriable=error.retriable)
    return TableEndsTaken(errors=errors)
