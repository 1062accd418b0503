"""The best known state of a cluster: from the controller, which is ahead of every broker, or else from a broker."""

from __future__ import annotations

from msgspec.structs import replace

from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.client.finding.routes import ASK_MS, Routes
from spark_replication.errors import ReplicationError
from spark_replication.messages.actions import DESCRIBE_TOPICS, METADATA
from spark_replication.messages.descriptions import DescribeTopics, GetMetadata, Metadata, TopicPage


def best_told(
    routes: Routes, topics: tuple[str, ...] | None, deadline: Deadline, *, since: Metadata | None = None
) -> Metadata:
    """The metadata of these topics, or of all with None. `since` is an earlier answer about all: if its topics are as
    they were, the controller does not send them again.

    The known controller is asked first: it answers even while no broker does. If none is known, brokers name it. If it
    does not answer, a broker's answer is returned. The answer is never older than an earlier one, unless no controller
    with a connection to ZooKeeper answers.
    """

    def ask() -> Metadata:
        known = routes.controller or routes.metadata((), deadline).controller
        told = _told_at(routes, known, topics, deadline, since)
        # Without ZooKeeper, a controller does not know whether another one has taken over. Brokers know.
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
        return _told_at(routes, found.controller, topics, deadline, since) or found

    return persistently(ask, deadline)


def best_told_page(routes: Routes, asked: DescribeTopics, deadline: Deadline) -> TopicPage:
    """A page of topics: from the controller that `best_told` names, or else from a broker."""

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
    routes: Routes, controller: str | None, topics: tuple[str, ...] | None, deadline: Deadline, since: Metadata | None
) -> Metadata | None:
    """The controller's metadata. None if there is no controller at this address, or it does not answer."""
    if controller is None:
        return None
    asked = GetMetadata(topics=topics, unless="" if since is None else since.mark)
    try:
        told = routes.call(controller, METADATA, asked, deadline.within_ms(ASK_MS))
    except ReplicationError as error:
        if not error.retriable:
            raise
        return None
    routes.heard(told)
    if told.is_unchanged and since is not None:
        told = replace(told, topics=since.topics, is_unchanged=False)
    # A broker may have this address since, and answer. Only a controller names this address as its own.
    return told if told.controller == controller else None
