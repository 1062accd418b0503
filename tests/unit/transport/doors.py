"""A server of actions whose calls a process of its own takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from spark_replication.config import settings_from
from spark_replication.transport.flight.actions import ActionServer, Handled
from spark_replication.transport.flight.door import Door
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import read_security

START_S = 60.0


class BehindDoor(NamedTuple):
    server: ActionServer
    door: Door

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@contextmanager
def behind_door(
    directory: Path, settings: Mapping[str, object], actions: Iterable[Handled], quotas: str = ""
) -> Iterator[BehindDoor]:
    door = Door("127.0.0.1", settings, directory)
    try:
        rights = Rights(read_security(settings_from(settings)), quotas=lambda: quotas)
        server = ActionServer("127.0.0.1", actions, rights=rights, door=door)
        assert door.wait_listening(START_S), door.why_not()
        yield BehindDoor(server, door)
    finally:
        door.stop()
