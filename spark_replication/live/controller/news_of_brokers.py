"""What the senders of commands find out about brokers, as events for the controller's loop."""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_replication.core.controller.events import BrokerDeathReported, Event, LogInfoRead, ReplicasFailed
from spark_replication.messages.commands import ReplicaLogInfos
from spark_replication.model import BrokerId, Registration, ReplicaOf, TopicPartition

log = logging.getLogger(__name__)


class NewsOfBrokers:
    """command_sender.BrokerNews."""

    def __init__(
        self,
        post: Callable[[Event], None],
        post_log_info: Callable[[LogInfoRead], None],
        confirmed: Callable[[TopicPartition, str, int], None],
    ) -> None:
        self._post = post
        self._post_log_info = post_log_info
        self._confirmed = confirmed

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        self._confirmed(partition, topic_id, leader_epoch)

    def suspected(self, broker: BrokerId, registration: Registration) -> None:
        log.warning("broker %d at %s refuses connections: it seems to be dead", broker, registration.address)
        self._post(BrokerDeathReported(broker, registration.incarnation))

    def log_info(self, broker: BrokerId, answer: ReplicaLogInfos) -> None:
        self._post_log_info(LogInfoRead(broker, answer))

    def failed(self, broker: BrokerId, epoch: int, replicas: tuple[ReplicaOf, ...]) -> None:
        self._post(replicas_failed(broker, epoch, replicas))


def replicas_failed(broker: BrokerId, epoch: int, replicas: tuple[ReplicaOf, ...]) -> ReplicasFailed:
    names = ", ".join(str(each.partition) for each in replicas)
    log.error("broker %d cannot keep %s: its disk refuses", broker, names)
    return ReplicasFailed(broker, epoch, replicas)
