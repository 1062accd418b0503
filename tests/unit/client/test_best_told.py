"""Who is believed about a cluster, when its brokers and its controllers say different things, or nothing."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace

from spark_replication.client.finding.best_told import best_told
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.errors import BrokerNotAvailable, InvalidRequest, NotController
from spark_replication.messages.descriptions import GetMetadata, Metadata, TopicMetadata
from spark_replication.model import TopicConfig


def told(by: str, controller: str | None, silent_ms: int = 0) -> Metadata:
    """by: who says so."""
    return Metadata(cluster_id=by, brokers={}, topics=(), controller=controller, zookeeper_silent_ms=silent_ms)


class AskedRoutes:
    """controller: as last heard. at: what is answered at each address of a controller. brokers: what a broker tells."""

    def __init__(self, controller: str | None, at: dict[str, Metadata], brokers: Metadata | None) -> None:
        self.controller = controller
        self._at = at
        self._brokers = brokers
        self.asked: list[str] = []
        self.unless: list[str] = []

    def metadata(self, topics: tuple[str, ...] | None, _deadline: Deadline) -> Metadata:
        self.asked.append("brokers" if topics is None else "brokers, of no topic")
        if self._brokers is None:
            raise BrokerNotAvailable("none answers")
        self.controller = self._brokers.controller
        return self._brokers

    def call(self, address: str, _action: object, request: GetMetadata, _deadline: Deadline) -> Metadata:
        assert request.topics is None
        self.unless.append(request.unless)
        self.asked.append(address)
        if address not in self._at:
            raise NotController("it stands by")
        return self._at[address]

    def heard(self, answer: Metadata) -> None:
        self.controller = answer.controller


def test_topics_that_the_asker_has_are_not_sent_again() -> None:
    topics = (TopicMetadata(name="foo", topic_id="id-foo", partitions=(), config=TopicConfig(schema="")),)
    before = replace(told("old", "old"), topics=topics, mark="m1")
    now = replace(told("old", "old"), mark="m1", is_unchanged=True, mirror_error="the disk is full")
    routes = AskedRoutes("old", {"old": now}, None)
    found = best_told(cast(Routes, routes), None, Deadline(10_000), since=before)
    assert routes.unless == ["m1"]
    assert found == replace(before, mirror_error="the disk is full")
    assert found.topics is topics
    anew = replace(before, topics=(), mark="m2")
    routes = AskedRoutes("old", {"old": anew}, None)
    assert best_told(cast(Routes, routes), None, Deadline(10_000), since=before) == anew


OF_BROKERS = told("a broker", "new")
OLD, NEW = told("old", "old"), told("new", "new")
ISOLATED = told("old", "old", silent_ms=4_000)


@pytest.mark.parametrize(
    ("known", "at", "brokers", "believed", "asked"),
    [
        ("old", {"old": OLD}, None, OLD, ["old"]),
        ("old", {"old": OLD, "new": NEW}, OF_BROKERS, OLD, ["old"]),
        (None, {"new": NEW}, OF_BROKERS, NEW, ["brokers, of no topic", "new"]),
        ("old", {"new": NEW}, OF_BROKERS, NEW, ["old", "brokers", "new"]),
        # No controller answers.
        ("old", {}, OF_BROKERS, OF_BROKERS, ["old", "brokers", "new"]),
        ("new", {}, OF_BROKERS, OF_BROKERS, ["new", "brokers"]),
        ("old", {}, told("a broker", None), told("a broker", None), ["old", "brokers"]),
        (None, {}, told("a broker", None), told("a broker", None), ["brokers, of no topic", "brokers"]),
        # It may have been replaced without hearing of it.
        ("old", {"old": ISOLATED, "new": NEW}, OF_BROKERS, NEW, ["old", "brokers", "new"]),
        ("old", {"old": ISOLATED}, OF_BROKERS, OF_BROKERS, ["old", "brokers", "new"]),
        ("old", {"old": ISOLATED}, told("a broker", "old"), ISOLATED, ["old", "brokers"]),
        ("old", {"old": ISOLATED}, told("a broker", None), ISOLATED, ["old", "brokers"]),
        ("old", {"old": ISOLATED}, None, ISOLATED, ["old", "brokers"]),
        # A broker has got the address of a controller that ended.
        ("old", {"old": OF_BROKERS, "new": NEW}, OF_BROKERS, NEW, ["old", "brokers", "new"]),
    ],
)
def test_who_is_asked_and_who_is_believed(
    known: str | None, at: dict[str, Metadata], brokers: Metadata | None, believed: Metadata, asked: list[str]
) -> None:
    routes = AskedRoutes(known, at, brokers)
    assert best_told(cast(Routes, routes), None, Deadline(10_000)) == believed
    assert routes.asked == asked


def test_nobody_answers() -> None:
    with pytest.raises(BrokerNotAvailable):
        best_told(cast(Routes, AskedRoutes("old", {}, None)), None, Deadline(50))


def test_a_refusal_for_good_by_brokers_outdoes_an_isolated_controller() -> None:
    class Refusing(AskedRoutes):
        def metadata(self, topics: tuple[str, ...] | None, _deadline: Deadline) -> Metadata:
            raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        best_told(cast(Routes, Refusing("old", {"old": ISOLATED}, None)), None, Deadline(10_000))
