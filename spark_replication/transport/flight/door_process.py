"""Takes the calls of a controller in a Spark driver: `python -m spark_replication.transport.flight.door_process`.

It has a limit of memory. The driver starts it, and guards it (transport.flight.door).

It imports little, since every start of a cluster waits for it, or shares a processor with it. It ends once its standard
input does, and so together with the driver, however that one ends.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyarrow import flight

from spark_replication.config import Settings, settings_from
from spark_replication.errors import ReplicationError
from spark_replication.process.logs import OwnOutput, log_as_text
from spark_replication.process.memory import HALF, keep_freed_memory, limit_memory
from spark_replication.transport.flight.door import CHANNEL, OPENED, STOP_S
from spark_replication.transport.flight.forwarding import ForwardedCall, Forwarder
from spark_replication.transport.flight.listening import Listening
from spark_replication.transport.security.certificates import Certificates, Tls

SETTINGS_BYTES_MAX = 1 << 20
MEMORY_BYTES = 1 << 30  # unless controller.memory.bytes.max says otherwise: it holds nothing for long

log = logging.getLogger(__name__)

BYTES_SUFFIX = "-bin"  # of headers whose values are no text: nobody here reads one

_CALL = "call"


class _Heard(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, call: ForwardedCall) -> None:
        super().__init__()
        self.call = call


class _Hearing(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Keeps the headers of a call for its handler. A call of a kind that no controller serves is forwarded at once: an
    error is all that comes back."""

    HANDLED = (flight.FlightMethod.DO_ACTION, flight.FlightMethod.LIST_ACTIONS)

    def __init__(self, forwarder: Forwarder, ca: str) -> None:
        super().__init__()
        self._forwarder = forwarder
        self._ca = ca

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> _Heard:
        texts = {name: values for name, values in headers.items() if not name.lower().endswith(BYTES_SUFFIX)}
        call = ForwardedCall(info.method.name, texts, ca=self._ca)
        if info.method not in self.HANDLED:
            self._forwarder.asked(call)
        return _Heard(call)


class _Forwarding:
    """listening.Calls."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self.listening: Listening | None = None

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        return self._asked(context, action.type, memoryview(action.body))

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        told = [text.decode() for text in self._asked(context)]
        return [*zip(told[::2], told[1::2], strict=True)]

    def _asked(
        self, context: flight.ServerCallContext, action: str = "", body: bytes | memoryview = b""
    ) -> list[bytes]:
        heard = context.get_middleware(_CALL).call
        call = ForwardedCall(heard.method, heard.headers, context.peer(), context.peer_identity(), heard.ca, action)
        messages, is_known = self._forwarder.asked(call, body)
        if is_known and self.listening is not None:
            self.listening.known(context, "", None)
        return messages


class _Control:
    """This process's end of what the driver hears it by: its standard input."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def settings(self) -> Settings | None:
        """None if whoever started this has ended."""
        given = self._connection.recv(SETTINGS_BYTES_MAX)
        return settings_from(json.loads(given)) if given else None

    def opened(self) -> None:
        self._connection.send(OPENED)

    def channel(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._connection, [CHANNEL], [theirs.fileno()])
        return ours

    def wait_ended(self) -> None:
        while self._connection.recv(1):
            continue


def _listening(host: str, port: int, settings: Settings, control: _Control) -> Listening:
    certificates = Certificates(settings) if settings.security_mode == "tls" else None
    forwarder = Forwarder(control.channel)
    forwarding = _Forwarding(forwarder)

    def middleware(tls: Tls | None) -> dict[str, Any]:
        return {_CALL: _Hearing(forwarder, "" if tls is None else tls.callers_mark)}

    found = forwarding.listening = Listening(
        forwarding,
        host,
        port,
        tls=lambda: None if certificates is None else certificates.now(),
        middleware=middleware,
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark_replication.transport.flight.door_process")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True, help="the file that standard error is")
    arguments = parser.parse_args()
    log_as_text(logging.INFO, OwnOutput(sys.stderr, arguments.log))
    control = _Control(socket.socket(fileno=sys.stdin.fileno()))
    settings = control.settings()
    if settings is None:
        return 0
    keep_freed_memory()
    limit_memory(MEMORY_BYTES if settings.controller_memory_bytes_max == HALF else settings.controller_memory_bytes_max)
    try:
        listening = _listening(arguments.host, arguments.port, settings, control)
    except ReplicationError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    control.opened()
    control.wait_ended()
    listening.stop(STOP_S)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a stream may be open, which pyarrow would wait for
