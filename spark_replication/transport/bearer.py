"""The token on Arrow Flight: a header of every call, which is checked before anything else of the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyarrow import flight

from spark_replication.errors import AuthenticationFailed, ReplicationError
from spark_replication.transport.token import AUTHORIZATION, Token


class Caller(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """Who makes a call, as far as its token says so."""

    def __init__(self, *, is_of_cluster: bool) -> None:
        super().__init__()
        #: A broker, a controller or a guardian.
        self.is_of_cluster = is_of_cluster


class BearerCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """An error that is raised here refuses the call, of whatever kind, before its handler runs."""

    def __init__(
        self, clients: Token | None, brokers: Token | None, refused: Callable[[ReplicationError], None]
    ) -> None:
        """clients: None: they need none. brokers: None: whoever is let in may ask for what brokers may. refused: counts
        refused calls."""
        super().__init__()
        self._clients = clients
        self._brokers = brokers
        self._refused = refused

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> Caller:
        shown = [value for name, values in headers.items() if name.lower() == AUTHORIZATION for value in values]
        if self._brokers is not None and self._brokers.admits(shown):
            return Caller(is_of_cluster=True)
        is_client = not shown if self._clients is None else self._clients.admits(shown)
        if is_client:
            return Caller(is_of_cluster=self._brokers is None)
        what = "another token than this cluster's" if shown else "no token"
        error = AuthenticationFailed(
            f"the call came with {what}: set security.token.file, or send the header `{AUTHORIZATION}: Bearer TOKEN`"
        )
        self._refused(error)
        raise flight.FlightUnauthenticatedError(str(error))


class BearerHeader(flight.ClientMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, token: Token) -> None:
        super().__init__()
        self._sending = _Sending(token)

    def start_call(self, info: flight.CallInfo) -> flight.ClientMiddleware:
        return self._sending


class _Sending(flight.ClientMiddleware):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, token: Token) -> None:
        super().__init__()
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        return {AUTHORIZATION: self._token.bearer}
