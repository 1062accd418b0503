"""Until something holds of a whole cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from spark_replication.errors import ReplicationError
from tests import waiting

DEADLINE_S = 120.0


def eventually(holds: Callable[[], bool], what: str) -> None:
    """A cluster that refuses to answer is not there yet."""

    def answered() -> bool:
        with suppress(ReplicationError):
            return holds()
        return False

    waiting.eventually(answered, what, DEADLINE_S)
