"""/isr_change_notification/change_[seq]: a leader tells the controller which partitions it changed."""

from __future__ import annotations

from spark_replication.model import TopicPartition, Value


class IsrChange(Value, frozen=True, kw_only=True):
    #: As people read them: `orders-3`.
    partitions: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for partition in self.partitions:
            TopicPartition.parse(partition)

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition.parse(partition) for partition in self.partitions)
