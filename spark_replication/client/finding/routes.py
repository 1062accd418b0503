"""Finds the leader of a partition, by asking any broker that answers, and keeps a Flight client to each. Thread-safe.

A route is used until somebody reports it stale. Then one thread asks for it again, for all that wait for it, and each
time asks another broker. No method waits beyond its deadline. await_topic retries; the callers of the other methods do
so themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
from pyarrow import flight

from spark_replication.client.finding.bootstrap import NamedCluster, parse_bootstrap
from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.core.routing import Route, Routing, learned
from spark_replication.errors import (
    BrokerNotAvailable,
    ClientClosed,
    ClusterNotFound,
    MisroutedCall,
    ReplicationError,
    RequestTimedOut,
    UnknownTopicOrPartition,
    WrongCluster,
)
from spark_replication.messages.actions import METADATA, Action, Asked, Told
from spark_replication.messages.descriptions import GetMetadata, Metadata, TopicMetadata
from spark_replication.model import BrokerId, Registration, TopicPartition
from spark_replication.process.processes import require_grpc
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import NO_SECURITY, Security

Answer = TypeVar("Answer", bound=msgspec.Struct)

ASK_MS = 2_000  # how long one broker has to answer, before the next is asked
CLOSED = "this client is closed: open another"
UNKNOWN_TOPIC_MS = 3_000  # how long an unknown topic is looked for
REFRESH_INTERVAL_S = 0.02  # between two requests for metadata

# A broker that comes back on its port is found within this time; channels of one process share no back-off.
_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500))


class Routes:
    def __init__(self, bootstrap: str, security: Security = NO_SECURITY, *, reach_ms: float | None = None) -> None:
        """reach_ms: how long somebody is looked for who answers at all, from the first question on, and all are asked
        once however long that takes: some may hang. Likewise for leaders, while only a controller answers and no broker
        was ever registered since. None: as long as each question may take."""
        require_grpc()
        #: For the brokers of this cluster.
        self.security = security.of_cluster(lambda: self._cluster_id)
        #: The cluster that the bootstrap names, else that of the first broker that answered. No other cluster is asked,
        #: or believed, after that. Empty while it is unknown.
        self._cluster_id = ""
        self._bootstrap = parse_bootstrap(bootstrap, security.zookeeper)
        self._named = bootstrap
        self._lock = threading.Lock()  # guards everything below; never held while a peer is asked
        self._routing = Routing()
        #: What to ask for, with the number of the report: a whole topic, or the routes of a partition.
        self._stale: dict[str | TopicPartition, int] = {}
        self._reports = 0
        self._turn = 0
        self._reach_ms = reach_ms
        #: Until then somebody has to answer. None before the first question, and without a limit.
        self._reach: Deadline | None = None
        self._was_reached = reach_ms is None
        self._knew_brokers = reach_ms is None
        #: Why nobody answered who had all the time that an answer may take. None: not all were asked yet.
        self._silence: dict[str, ReplicationError] | None = None
        self._failed: set[str] = set()  # addresses that did not answer last time; they are asked last
        self._clients: dict[str, flight.FlightClient] = {}
        self._closed = threading.Event()
        self._refreshing = threading.Lock()  # one thread at a time asks for metadata
        self._refreshed_s = 0.0

    @property
    def cluster_id(self) -> str:
        """The cluster that answers; empty before anybody has."""
        return self._cluster_id

    # Routes

    def route(self, topic: str, partition: int, deadline: Deadline) -> Route:
        """The last known route. If it is unknown or was reported stale, ask for it first."""
        name = TopicPartition(topic, partition)
        self.renew((name,), deadline)
        return self.latest(name)

    def known(self, partition: TopicPartition) -> Route | None:
        """The last known route. None: it is unknown or was reported stale, so it has to be asked for."""
        with self._lock:
            if self._is_stale(partition):
                return None
        return self.latest(partition)

    def latest(self, partition: TopicPartition) -> Route:
        """The last known route, stale or not."""
        with self._lock:
            self._require(partition)
            try:
                return self._routing.route(*partition)
            except ReplicationError:
                self._report(partition)
                self._require_brokers(partition)
                raise

    def renew(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> None:
        """Ask for the routes to these partitions, if any of them is unknown or was reported stale."""
        with self._lock:
            stale = next((each for each in partitions if self._is_stale(each)), None)
        if stale is not None:
            self._refresh(stale, deadline)

    def topic(self, name: str, deadline: Deadline) -> TopicMetadata:
        """The topic with its settings and schema, as last known. If it is unknown or was reported stale, ask for it
        first. Routes that were reported stale are no reason to ask."""
        with self._lock:
            stale = self._is_stale(name)
        if stale:
            self._refresh(name, deadline)
        with self._lock:
            try:
                return self._routing.topic(name)
            except ReplicationError:
                self._report(name)
                raise

    def known_topic(self, name: str, partition: int | None = None) -> TopicMetadata | None:
        """The topic, if it and its partition are known and were not reported stale. None: they have to be asked for."""
        with self._lock:
            try:
                if partition is not None:
                    self._require(TopicPartition(name, partition))
                return None if self._is_stale(name) else self._routing.topic(name)
            except ReplicationError:
                return None

    def await_topic(
        self, name: str, deadline: Deadline, partition: int | None = None, ended: threading.Event | None = None
    ) -> TopicMetadata:
        """Wait for a topic until a broker or the controller knows it and its partition. UnknownTopicOrPartition if none
        has known it for `UNKNOWN_TOPIC_MS`: by then brokers have heard of a new topic. ClientClosed as soon as this is
        closed, or the caller has `ended`."""
        self._require_open()
        ended = ended or self._closed
        unknown: Deadline | None = None

        def unknown_for_long(error: ReplicationError) -> bool:
            nonlocal unknown
            if error.code != UnknownTopicOrPartition.code:
                unknown = None
            elif unknown is None:
                unknown = deadline.within_ms(UNKNOWN_TOPIC_MS)
            return unknown is not None and unknown.passed

        def known() -> TopicMetadata:
            if ended.is_set():
                raise ClientClosed(CLOSED)
            return self._known(name, partition, deadline)

        return persistently(
            known,
            deadline,
            wait=ended.wait,
            give_up=unknown_for_long,
        )

    def followers(self, topic: str, partition: int, deadline: Deadline) -> dict[BrokerId, Registration]:
        """The in-sync replicas that do not lead, as last known or asked for: see `route`."""
        self.topic(topic, deadline)
        with self._lock:
            return self._routing.followers(topic, partition)

    def _known(self, name: str, partition: int | None, deadline: Deadline) -> TopicMetadata:
        found = self.topic(name, deadline)
        if partition is not None:
            with self._lock:
                self._require(TopicPartition(name, partition))
        return found

    def stale(self, route: Route) -> None:
        """Report that a route did not work. If the route has been replaced since, the report is ignored."""
        with self._lock:
            try:
                current = self._routing.route(route.topic, route.partition)
            except ReplicationError:
                current = None
            if current is None or current == route:
                self._report(TopicPartition(route.topic, route.partition))

    def stale_topic(self, name: str) -> None:
        """Report that what is known of a topic (its schema, its settings) seems to be out of date."""
        with self._lock:
            self._report(name)

    def look_for_more(self, name: str, deadline: Deadline) -> None:
        """Ask a broker whether the topic has gained or lost partitions, and report the topic stale if so. The answer is
        about two partitions, however many there are."""
        with self._lock:
            known = self._routing.topics.get(name)
            if known is None or not known.numbers or name in self._stale:
                return
            last = known.numbers[-1]
        asked = GetMetadata(topics=(name,), only={name: (last, last + 1)})
        answer = self.ask(METADATA, asked, deadline)
        for found in answer.topics:
            if found.name == name and set(found.numbers) != {last}:
                self.stale_topic(name)

    def metadata(self, topics: Sequence[str] | None, deadline: Deadline) -> Metadata:
        """Ask one broker for the metadata of these topics, or of all with None, and learn the routes in it."""
        return self._told(GetMetadata(topics=None if topics is None else tuple(topics)), deadline)

    def _told(self, asked: GetMetadata, deadline: Deadline) -> Metadata:
        answer = self.ask(METADATA, asked, deadline)
        self._learn(answer, asked)
        return answer

    def heard(self, answer: Metadata) -> None:
        """Learn the brokers and the controller from an answer that somebody else asked for. Its topics are ignored:
        they would cost a look at each partition."""
        self._learn(msgspec.structs.replace(answer, topics=()), GetMetadata())

    def _learn(self, answer: Metadata, asked: GetMetadata) -> None:
        with self._lock:
            self._routing = learned(self._routing, answer, asked.topics or (), asked.only)
            self._knew_brokers = self._knew_brokers or bool(answer.brokers)
            self._drop_unused_clients()

    @property
    def controller(self) -> str | None:
        """The last known address of the controller, if there is one."""
        return self._routing.controller

    # Under the lock

    def _report(self, what: str | TopicPartition) -> None:
        self._reports += 1
        self._stale[what] = self._reports

    def _is_stale(self, what: str | TopicPartition) -> bool:
        topic = what if isinstance(what, str) else what.topic
        if topic not in self._routing.topics and topic not in self._stale:
            self._report(topic)
        return topic in self._stale or what in self._stale

    def _require(self, partition: TopicPartition) -> None:
        """Raise the error if nobody knows the partition. It may have been added since: then the whole topic has to be
        asked for."""
        try:
            self._routing.partition(*partition)
        except ReplicationError:
            self._report(partition.topic)
            raise

    def _require_brokers(self, partition: TopicPartition) -> None:
        """ClusterNotFound if nobody but a controller has been there for the whole search."""
        if self._knew_brokers or self._reach is None or not self._reach.passed:
            return
        raise ClusterNotFound(
            f"{partition} cannot be reached: no broker of {self._named!r} is registered, the controller at "
            f"{self._routing.controller} alone answers. Start brokers; what is wrong: spark-replication health"
        )

    # Asking

    def _refresh(self, what: str | TopicPartition, deadline: Deadline) -> None:
        """Ask for whatever was reported stale, if this still is."""
        if not self._refreshing.acquire(timeout=deadline.remaining_s):
            raise RequestTimedOut(f"no metadata of {what} within {deadline.timeout_ms:.0f} ms: retry")
        try:
            with self._lock:
                if not self._is_stale(what):
                    return  # another thread asked, while this one waited for its turn
                reported = dict(self._stale)
            self._closed.wait(max(0.0, min(self._refreshed_s + REFRESH_INTERVAL_S - time.monotonic(), 1.0)))
            asked = _question(reported)
            answer = self._told(asked, deadline)
            unknown = tuple(sorted({*(asked.topics or ())} - {found.name for found in answer.topics}))
            if unknown and answer.controller is not None:
                # The controller is ahead of every broker. If it does not answer, what the broker knows has to do.
                with suppress(ReplicationError):
                    request = GetMetadata(topics=unknown)
                    told = self.call(answer.controller, METADATA, request, deadline.within_ms(ASK_MS))
                    self._learn(told, request)
            self._refreshed_s = time.monotonic()
            with self._lock:
                # What was reported stale meanwhile stays stale: the answer may be older than the report.
                self._stale = {each: number for each, number in self._stale.items() if reported.get(each) != number}
        finally:
            self._refreshing.release()

    # Brokers

    def ask(self, action: Action[Asked, Told], request: Asked, deadline: Deadline) -> Told:
        """Send a request that changes nothing to brokers, and at last to the controller, until one answers.
        BrokerNotAvailable if none does. Whoever does not prove that it is a broker, or proof enough for it, says
        nothing of the others."""
        self._require_open()
        self._look_for_the_first()
        tried: dict[str, ReplicationError] = {}
        for address in self._candidates(deadline, tried):
            if address in tried:
                continue
            try:
                answer = self.call(address, action, request, deadline.within_ms(self._patience_ms))
            except ReplicationError as error:
                if not (error.retriable or error.stale_routes):
                    raise
                tried[address] = error
                with self._lock:
                    self._failed.add(address)
            else:
                with self._lock:
                    self._failed.discard(address)
                    self._was_reached = True
                return answer
            if deadline.passed:
                break
        if self._silence is None or self._patience_ms == ASK_MS:
            self._silence = tried
        tried = {**tried, **self._silence}  # whose time was cut short says less
        for_good = next((error for error in tried.values() if not error.retriable), None)
        if for_good is not None:
            raise for_good
        said = "; ".join(f"{address}: {error}" for address, error in tried.items()) or "none is known"
        if not self._was_reached and self._reach is not None and self._reach.passed:
            raise ClusterNotFound(
                f"nobody has answered at {self._named!r} for {self._reach.timeout_ms / 1000:.0f} s ({said}): check it, "
                "and that the cluster runs"
            )
        raise BrokerNotAvailable(
            f"no broker of {self._named!r} answered ({said}): check the addresses, and that brokers run"
        )

    @property
    def _patience_ms(self) -> float:
        """How long one of them has to answer. Later than the search lasts only the first time."""
        if self._was_reached or self._reach is None or self._silence is None:
            return ASK_MS
        return min(ASK_MS, max(1, self._reach.remaining_ms))

    def _look_for_the_first(self) -> None:
        with self._lock:
            if self._reach_ms is not None and self._reach is None:
                self._reach = Deadline(self._reach_ms)

    def call(self, address: str, action: Action[Asked, Told], request: Asked, deadline: Deadline) -> Told:
        """Send a request to this peer and to no other."""
        client = self.client(address)
        try:
            answer = call(client, action, request, max(1, deadline.remaining_ms))
        except BrokerNotAvailable:
            self.forget(address, client)
            raise
        if isinstance(answer, Metadata):
            with self._lock:
                self._cluster_id = self._cluster_id or answer.cluster_id
                if answer.cluster_id != self._cluster_id:
                    raise MisroutedCall(
                        f"a server of cluster {answer.cluster_id} answered at {address}, and this client is of cluster "
                        f"{self._cluster_id}: ask another broker"
                    )
        return answer

    def client(self, address: str) -> flight.FlightClient:
        with self._lock:
            self._require_open()
            if address not in self._clients:
                self._clients[address] = self.security.client(address, _CHANNEL)
            return self._clients[address]

    def forget(self, address: str, client: flight.FlightClient) -> None:
        """Drop a client whose connection failed: the next call makes a new one. Streams that still run over the old one
        go on."""
        with self._lock:
            if self._clients.get(address) is client:
                del self._clients[address]

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise ClientClosed(CLOSED)

    def close(self) -> None:
        """Whoever waits for an answer is told so at once."""
        self._closed.set()
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _candidates(self, deadline: Deadline, tried: dict[str, ReplicationError]) -> Iterator[str]:
        """The addresses to ask: the known brokers in turn, then those that the bootstrap names. An address that did not
        answer last time comes after all other brokers, and the controller is last: it answers where no broker lives."""
        with self._lock:
            known = [registration.address for _, registration in sorted(self._routing.brokers.items())]
            self._turn += 1
            first = self._turn % len(known) if known else 0
            failed = set(self._failed)
            controllers = [self._routing.controller]
        known = known[first:] + known[:first]
        yield from [address for address in known if address not in failed]
        try:
            begun = self._bootstrap.cluster(deadline.within_ms(self._patience_ms).remaining_ms)
            named = self._begun(begun)
            controllers.insert(0, begun.controller)
        except (BrokerNotAvailable, WrongCluster) as error:
            named = []
            tried[self._named] = error
        later = [address for address in (*named, *known) if address in failed]
        yield from [address for address in named if address not in failed]
        yield from later
        yield from [address for address in controllers if address is not None]

    def _begun(self, named: NamedCluster) -> list[str]:
        with self._lock:
            self._cluster_id = self._cluster_id or named.cluster_id
            if named.cluster_id not in ("", self._cluster_id):
                raise WrongCluster(
                    f"{self._named!r} names cluster {named.cluster_id} by now, and this client is of cluster "
                    f"{self._cluster_id}: open another"
                )
        return named.brokers

    def _drop_unused_clients(self) -> None:
        """Drop clients to old addresses: brokers that restart get new ports, and their clients would pile up."""
        used = {registration.address for registration in self._routing.brokers.values()} | {self._routing.controller}
        self._clients = {address: client for address, client in self._clients.items() if address in used}
        self._failed &= used


def _question(stale: Collection[str | TopicPartition]) -> GetMetadata:
    """What to ask of topics and partitions that were reported stale: in an outage, thousands of a topic's partitions
    may be told of again and again, and the others need not be."""
    whole = {each for each in stale if isinstance(each, str)}
    only: dict[str, list[int]] = {}
    for each in stale:
        if not isinstance(each, str) and each.topic not in whole:
            only.setdefault(each.topic, []).append(each.partition)
    return GetMetadata(
        topics=tuple(sorted(whole | only.keys())), only={topic: tuple(sorted(few)) for topic, few in only.items()}
    )
