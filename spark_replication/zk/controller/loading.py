"""What a controller reads once it has won (C1)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from spark_replication.config import Settings
from spark_replication.core.controller.cluster import LoadedCluster
from spark_replication.core.controller.events import Requested
from spark_replication.errors import NotController
from spark_replication.messages.requests import DeleteTopic
from spark_replication.model import TopicPartition, shortened
from spark_replication.zk import paths
from spark_replication.zk.controller.admin_requests import FoundRequest, read_requests
from spark_replication.zk.reading import NodeReads, Reading

log = logging.getLogger(__name__)


def load(
    reads: NodeReads, settings: Settings, cluster_id: str, controller_epoch: int
) -> tuple[LoadedCluster, list[FoundRequest]]:
    """Everything, and what is below /admin. NotController: /controller is gone again."""
    own = reads.read_now(paths.CONTROLLER)
    if own is None:
        raise NotController(f"{paths.CONTROLLER} is gone again: another controller may take over")
    read = Reading(reads)
    nodes = read.topic_nodes()
    topics = read.topics(nodes)
    assigned = [TopicPartition(name, number) for name, of in topics.items() for number in of.state.partitions]
    partitions = read.partitions(assigned)
    removed = read.removed(nodes, assigned, partitions.keys())
    for partition in sorted(removed):
        log.error(
            "%s was removed by somebody: it is made again, and logs decide who leads", paths.leader_and_isr(partition)
        )
    partitions |= read.tombstones(nodes, topics, partitions)
    brokers = read.brokers()
    stored_settings = read.settings()
    requests = read_requests(reads)
    unreadable = read.unreadable
    for path, why in unreadable.reasons.items():
        log.error("%s is left as it is, and nobody decides about it: %s", shortened(path), shortened(why))
    # A topic whose children cannot be listed became hidden after it was read.
    topics = {name: of for name, of in topics.items() if name not in unreadable.topics}
    deleting = frozenset(_marked(requests) & topics.keys())
    loaded = LoadedCluster(
        cluster_id=cluster_id,
        controller_epoch=controller_epoch,
        settings=settings,
        stored_settings=stored_settings,
        topics=topics,
        partitions={of: found for of, found in partitions.items() if of.topic in topics},
        brokers=brokers.brokers,
        broker_epochs=brokers.broker_epochs,
        deleting=deleting,
        requests=tuple(_requests(requests, deleting)),
        removed=frozenset(each for each in removed if each.topic in topics and each.topic not in deleting),
        unreadable=unreadable,
        zxid=own.created_zxid,
    )
    return loaded, requests


def _marked(found: Iterable[FoundRequest]) -> set[str]:
    return {each.asked.topic for each in found if isinstance(each.asked, DeleteTopic)}


def _requests(found: Iterable[FoundRequest], deleting: frozenset[str]) -> Iterator[Requested]:
    """The requests, without the marks of deletions under way, which go on by themselves. The mark of a topic that is
    not there is a request: it is refused, and so removed."""
    for each in found:
        requested = each.requested  # the watch logs a node that is no request
        if requested is not None and not (isinstance(each.asked, DeleteTopic) and each.asked.topic in deleting):
            yield requested
