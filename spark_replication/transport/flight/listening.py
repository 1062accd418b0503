"""A port that pyarrow's Flight serves: with the certificate of now, and without strangers once descriptors run out.

What its calls are answered by is given: the actions of this process, or another process to which they are passed on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import flight

from spark_replication.errors import StartFailed
from spark_replication.process.processes import uses_grpc
from spark_replication.transport.flight.strangers import Strangers
from spark_replication.transport.security.certificates import Tls

LOOK_S = 0.25  # at connections, and whether the certificate was replaced
BEGIN_AGAIN_S = 0.01

log = logging.getLogger(__name__)


class Calls(Protocol):
    """What calls are answered by. What it has not is refused by the middleware."""

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]: ...
    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]: ...


class _Serving(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves from birth, with the certificate that was there then: pyarrow's servers take no other later."""

    def __init__(self, calls: Any, location: str, given: Mapping[str, Any]) -> None:
        self._calls = calls
        uses_grpc()
        super().__init__(location, **given)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        return self._calls.do_action(context, action)  # type: ignore[no-any-return]

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        return self._calls.list_actions(context)  # type: ignore[no-any-return]

    def do_put(self, context: flight.ServerCallContext, *given: Any) -> None:
        self._calls.do_put(context, *given)

    def do_exchange(self, context: flight.ServerCallContext, *given: Any) -> None:
        self._calls.do_exchange(context, *given)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        return self._calls.do_get(context, ticket)

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        return self._calls.get_flight_info(context, descriptor)

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        return self._calls.list_flights(context, criteria)  # type: ignore[no-any-return]


class Listening:
    """Serves from birth. Once its certificate is replaced, another Flight server takes its port; streams that are open
    go on as they began."""

    def __init__(
        self,
        calls: Calls,
        host: str,
        port: int,
        *,
        tls: Callable[[], Tls | None],
        middleware: Callable[[Tls | None], Mapping[str, flight.ServerMiddlewareFactory]],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """port: 0 lets the system choose; the attribute `port` then says which. tls: as it is now. middleware: of a
        server that begins with this. look: is called every LOOK_S."""
        self._calls = calls
        self._host = host
        self._tls_now = tls
        self._middleware = middleware
        self._look = look
        self._stopped = threading.Event()
        self._changing = threading.Lock()
        self._strangers = Strangers()
        self._tls = tls()
        self._serving = self._begun(port)
        self.port: int = self._serving.port
        threading.Thread(target=self._watch, name="flight-watch", daemon=True).start()

    def known(self, context: flight.ServerCallContext, principal: str, at_most: int | None) -> bool:
        """Whoever makes this call is let in. False: the principal has at_most other connections here."""
        return self._strangers.known.let_in(context.peer(), principal, port=self.port, at_most=at_most)

    def hang_up(self, peers: Container[str]) -> int:
        """All that these have open here ends. Returns how many connections there were."""
        return self._strangers.hang_up(self.port, peers)

    def stop(self, timeout_s: float) -> None:
        """Take no new calls, and give those under way `timeout_s`. A stream that its client holds open ends with the
        process: pyarrow's shutdown would wait for it without end."""
        ending = threading.Thread(target=self.shutdown, name="flight-shutdown", daemon=True)
        ending.start()
        ending.join(timeout_s)

    def shutdown(self) -> None:
        """Take no new calls, and wait for those under way."""
        self._stopped.set()
        with self._changing:
            serving = self._serving
        serving.shutdown()

    def _begun(self, port: int) -> _Serving:
        given: dict[str, Any] = {"middleware": self._middleware(self._tls)}
        scheme = "grpc"
        if (tls := self._tls) is not None:
            assert tls.certificate is not None, "else it may not bind"
            scheme = "grpc+tls"
            given["tls_certificates"] = [(tls.certificate.chain, tls.certificate.key)]
            if tls.mutual:
                given |= {"verify_client": True, "root_certificates": tls.ca}
        try:
            return _Serving(self._calls, f"{scheme}://{self._host}:{port}", given)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise StartFailed(f"no Flight server on {self._host}:{port}: {error}. Is the port in use?") from error

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_S):
            self._strangers.look(self.port)
            self._look()
            tls = self._tls_now()
            if tls is not self._tls and tls is not None:
                self._tls = tls
                self._begin_again()
        self._strangers.close()

    def _begin_again(self) -> None:
        """Serve with the certificate of now."""
        before = self._serving
        threading.Thread(target=before.shutdown, name="flight-shutdown", daemon=True).start()
        while not self._began_again() and not self._stopped.wait(BEGIN_AGAIN_S):
            continue  # its port is free in a moment

    def _began_again(self) -> bool:
        with self._changing:
            if self._stopped.is_set():
                return False
            try:
                self._serving = self._begun(self.port)
            except StartFailed:
                return False
        log.info("port %d is served with the certificate that has come", self.port)
        return True
