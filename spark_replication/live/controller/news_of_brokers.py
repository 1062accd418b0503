"""Logs what follows from brokers' answers, and posts it to the controller's loop."""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_replication.core.controller.events import (
    BrokerDeathReported,
    BrokerNoted,
    LogInfoRead,
    LogsAhead,
    ReplicasFailed,
)
from spark_replication.engine.controller.command_line import BrokerNews
from spark_replication.model import TopicPartition

log = logging.getLogger(__name__)


class NewsOfBrokers:
    """command_sender.Heard."""

    def __init__(
        self,
        post: Callable[[BrokerDeathReported | BrokerNoted | LogsAhead | ReplicasFailed], None],
        post_log_info: Callable[[LogInfoRead], None],
        confirmed: Callable[[TopicPartition, str, int], None],
    ) -> None:
        """post_log_info: takes answers about logs, which the loop takes together, before anything else."""
        self._post = post
        self._post_log_info = post_log_info
        self._confirmed = confirmed

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        self._confirmed(partition, topic_id, leader_epoch)

    def happened(self, event: BrokerNews) -> None:
        match event:
            case LogInfoRead():
                self._post_log_info(event)
            case BrokerDeathReported():
                log.warning("broker %d refuses connections: it seems to be dead", event.broker)
                self._post(event)
            case BrokerNoted():
                self._post(event)
            case LogsAhead():
                log.error(
                    "ZooKeeper is as of an earlier time than the logs of broker %d: %s",
                    event.broker,
                    ", ".join(f"{each.partition} has epoch {last}" for each, last in event.last_epochs.items()),
                )
                self._post(event)
            case ReplicasFailed():
                logged(event)
                self._post(event)


def logged(failed: ReplicasFailed) -> ReplicasFailed:
    names = ", ".join(str(each.partition) for each in failed.replicas)
    log.error("broker %d cannot keep %s: its disk refuses", failed.broker, names)
    return failed
