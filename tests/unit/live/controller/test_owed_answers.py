"""Each asker gets its own answer, once; a node below /admin gets none."""

from __future__ import annotations

import logging

import pytest

from spark_replication.core.controller.events import Requested, TookOver
from spark_replication.core.controller.plan import Reply
from spark_replication.errors import InvalidRequest, NotController
from spark_replication.live.controller.owed_answers import OwedAnswers
from spark_replication.messages.requests import DeleteTopic

ASKED = DeleteTopic(topic="orders")


def test_an_answer_is_its_callers_alone() -> None:
    owed, reply = OwedAnswers(), Reply()
    with owed.asked(ASKED, "here") as (first, one), owed.asked(ASKED, "there") as (second, other):
        assert (first.asked, first.asked_by, second.asked_by) == (ASKED, "here", "there")
        assert first.request is not None
        owed.answer(first.request, reply)
        assert one.result(0) is reply
        assert not other.done()
    assert second.request is not None
    owed.answer(second.request, reply)
    assert not other.done(), "nobody waits for it any longer"


def test_why_a_node_was_refused_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    owed = OwedAnswers()
    numbered = owed.numbered(Requested(asked=ASKED, path="/admin/delete_topics/orders"))
    assert isinstance(numbered, Requested)
    assert numbered.request is not None
    with caplog.at_level(logging.WARNING):
        owed.answer(numbered.request, Reply(InvalidRequest("no such topic")))
        owed.answer(numbered.request, Reply(InvalidRequest("no such topic")))
    assert [record.message for record in caplog.records] == [
        "/admin/delete_topics/orders is refused: INVALID_REQUEST: no such topic"
    ]


@pytest.mark.parametrize("event", [TookOver(), Requested(asked=ASKED, request=7)])
def test_what_no_node_asks_for_keeps_its_number(event: TookOver | Requested) -> None:
    assert OwedAnswers().numbered(event) is event


def test_whoever_waits_when_a_term_ends_is_told_so_and_nodes_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    owed, error = OwedAnswers(), NotController("ask another")
    numbered = owed.numbered(Requested(asked=ASKED, path="/admin/delete_topics/orders"))
    assert isinstance(numbered, Requested)
    assert numbered.request is not None
    with owed.asked(ASKED, "here") as (_, answer):
        owed.answer_all(Reply(error))
        assert answer.result(0).error is error
    with caplog.at_level(logging.WARNING):
        owed.answer(numbered.request, Reply(error))
    assert caplog.records == []
