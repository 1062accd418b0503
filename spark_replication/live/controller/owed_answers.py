"""Answers that the controller owes: to callers of an RPC, and for nodes below /admin."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from msgspec.structs import replace

from spark_replication.core.controller.events import Event, Requested
from spark_replication.core.controller.plan import Reply
from spark_replication.messages.requests import Request

log = logging.getLogger(__name__)


class OwedAnswers:
    """Requests are numbered here; the loop answers by number, on the controller's thread."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._owed: dict[int, Future[Reply]] = {}
        self._paths: dict[int, str] = {}

    @contextmanager
    def asked(self, request: Request, caller: str) -> Iterator[tuple[Requested, Future[Reply]]]:
        """The numbered request, and its answer for a caller that waits within the block."""
        number, answer = next(self._numbers), Future[Reply]()
        self._owed[number] = answer
        try:
            yield Requested(asked=request, request=number, asked_by=caller), answer
        finally:
            self._owed.pop(number, None)

    def numbered(self, event: Event) -> Event:
        """The event with a number, if it is a request of a node. A node is answered by its removal alone: a refusal is
        logged."""
        if not isinstance(event, Requested) or event.path is None:
            return event
        number = next(self._numbers)
        self._paths[number] = event.path
        return replace(event, request=number)

    def answer(self, number: int, reply: Reply) -> None:
        path = self._paths.pop(number, None)
        if path is not None:
            for refusal in (reply.error, *reply.errors.values()):
                if refusal is not None:
                    log.warning("%s is refused: %s", path, refusal)
            return
        owed = self._owed.pop(number, None)
        if owed is not None and not owed.done():
            owed.set_result(reply)

    def answer_all(self, reply: Reply) -> None:
        """Answer all callers. Nodes stay: the next controller loads them."""
        for number in list(self._owed):
            self.answer(number, reply)
        self._paths.clear()
