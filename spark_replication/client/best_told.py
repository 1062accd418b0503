"""A cluster as it is best known: as the controller tells it, which is ahead of every broker, or a broker."""

from __future__ import annotations

from spark_replication.client.deadline import Deadline, persistently
from spark_replication.client.routes import ASK_MS, Routes
from spark_replication.errors import ReplicationError
from spark_replication.messages.actions import DESCRIBE_TOPICS, METADATA
from spark_replication.messages.descriptions import DescribeTopics, GetMetadata, Metadata, TopicPage


def best_told(routes: Routes, topics: tuple[str, ...] | None, deadline: Deadline) -> Metadata:
    """Of these topics (None: all). The controller that is known is asked first, since it answers while no broker does;
    brokers name it where none is known, and tell themselves while it does not answer.

    An answer never takes anybody back to what was before, unless no controller with a connection to ZooKeeper
    answers."""

    def ask() -> Metadata:
        known = routes.controller or routes.metadata((), deadline).controller
        told = _told_at(routes, known, topics, deadline)
        # Without ZooKeeper it does not know whether another controller has taken over; brokers do.
        if told is not None and not told.zookeeper_silent_ms:
            return told
        try:
            found = routes.metadata(topics, deadline)
        except ReplicationError as error:
            if told is None or not error.retriable:
                raise
            return told
        if found.controller in (None, known):
            return told or found
        return _told_at(routes, found.controller, topics, deadline) or found

    return persistently(ask, deadline)


def best_told_page(routes: Routes, asked: DescribeTopics, deadline: Deadline) -> TopicPage:
    """A page of topics, of whom `best_told` would ask."""

    def ask() -> TopicPage:
        controller = best_told(routes, (), deadline).controller
        if controller is not None:
            try:
                return routes.call(controller, DESCRIBE_TOPICS, asked, deadline.within_ms(ASK_MS))
            except ReplicationError as error:
                if not error.retriable:
                    raise
        return routes.ask(DESCRIBE_TOPICS, asked, deadline)

    return persistently(ask, deadline)


def _told_at(
    routes: Routes, controller: str | None, topics: tuple[str, ...] | None, deadline: Deadline
) -> Metadata | None:
    """None: there is no controller at this address, or it does not answer."""
    if controller is None:
        return None
    try:
        told = routes.call(controller, METADATA, GetMetadata(topics=topics), deadline.within_ms(ASK_MS))
    except ReplicationError as error:
        if not error.retriable:
            raise
        return None
    routes.heard(told)
    # A broker that has this address by now answers, too. A controller names itself.
    return told if told.controller == controller else None
