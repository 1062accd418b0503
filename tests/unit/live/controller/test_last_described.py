"""All topics are described once, until something differs, and sent once to whoever has them."""

from __future__ import annotations

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.describing import described
from spark_replication.core.law.writes import StoredPartition
from spark_replication.live.controller.last_described import LastDescribed
from tests.unit.core.stories import FOO, cluster_of, state, topic

ADDRESS = "127.0.0.1:1"


def cluster() -> ClusterState:
    return cluster_of(1, 2, topics={"foo": topic((1, 2))}, states={"foo-0": state(1, [1, 2])})


def test_it_is_made_once_while_nothing_differs() -> None:
    known, last = cluster(), LastDescribed()
    first = last.of(known.snapshot(), ADDRESS, "")
    known.now_ms += 1
    again = last.of(known.snapshot(), ADDRESS, "")
    assert again is first
    assert (first.topics, first.controller) == (described(known, None, ADDRESS).topics, ADDRESS)
    assert not first.is_unchanged


def test_who_has_it_gets_no_topics_again_but_all_else() -> None:
    known, last = cluster(), LastDescribed()
    first = last.of(known.snapshot(), ADDRESS, "")
    told = last.of(known.snapshot(), ADDRESS, first.mark)
    assert (told.is_unchanged, told.topics, told.mark, told.brokers) == (True, (), first.mark, first.brokers)
    assert last.of(known.snapshot(), ADDRESS, "another's") is first


def test_what_differs_has_another_mark_and_is_sent_whole() -> None:
    known, last = cluster(), LastDescribed()
    first = last.of(known.snapshot(), ADDRESS, "")
    known.apply_partition(FOO, StoredPartition(state(2, [2], leader_epoch=5), 9, zxid=90))
    told = last.of(known.snapshot(), ADDRESS, first.mark)
    assert told.mark != first.mark
    assert not told.is_unchanged
    assert told.topics == described(known, None, ADDRESS).topics != first.topics
    elsewhere = last.of(known.snapshot(), "127.0.0.1:2", told.mark)
    assert (elsewhere.controller, elsewhere.is_unchanged) == ("127.0.0.1:2", False)
