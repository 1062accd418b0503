"""Who makes a Flight call: its header, which is looked at before anything else of the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyarrow import flight

from spark_replication.errors import AuthenticationFailed, Overloaded
from spark_replication.transport.proofs.answer_proofs import NONCE_HEADER, nonce_of
from spark_replication.transport.proofs.caller import ANYBODY, Caller
from spark_replication.transport.proofs.cluster_header import ClusterCheck, Refused
from spark_replication.transport.proofs.tickets import Tickets
from spark_replication.transport.proofs.token import AUTHORIZATION
from spark_replication.transport.proofs.tokens import Tokens

TICKET_SCHEME = "Ticket "

NO_TOKEN = "the call came with no token"


class CheckedCall(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    def __init__(
        self, caller: Caller | None, nonce: bytes | None = None, misrouted: flight.FlightServerError | None = None
    ) -> None:
        super().__init__()
        #: None: it has proven nothing yet, and may do nothing but that.
        self.caller = caller
        #: Of a caller that wants a proof of the answer.
        self.nonce = nonce
        #: The call is for another cluster: what its answer is to say, with a proof.
        self.misrouted = misrouted


class CallCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """An error that is raised here refuses the call, of whatever kind, before its handler runs."""

    def __init__(
        self,
        clients: Tokens | None,
        is_known: Callable[[str], bool],
        tickets: Tickets,
        cluster: ClusterCheck,
        refused: Refused,
    ) -> None:
        """clients: None: they need no token. is_known: whether the token with this mark is still there. cluster: of
        calls whose caller is known. refused: counts refused calls, and tells of them."""
        super().__init__()
        self._clients = clients
        self._is_known = is_known
        self._tickets = tickets
        self._cluster = cluster
        self._refused = refused

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> CheckedCall:
        caller = self._caller(info, headers)
        if caller is None:
            return CheckedCall(None)
        is_proven = info.method == flight.FlightMethod.DO_ACTION and bool(caller.session)
        nonce = nonce_of(_values(headers, NONCE_HEADER)) if is_proven else None
        try:
            self._cluster.start_call(info, headers)
        except flight.FlightServerError as misrouted:
            if nonce is None:
                raise
            return CheckedCall(caller, nonce, misrouted)
        return CheckedCall(caller, nonce)

    def _caller(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> Caller | None:
        shown = _values(headers, AUTHORIZATION)
        if shown:
            return self._shown(info, shown)
        if self._clients is None:
            return ANYBODY
        if info.method == flight.FlightMethod.DO_ACTION:  # it may be an introduction
            return None
        raise self._error(info, NO_TOKEN)

    def _shown(self, info: flight.CallInfo, headers: list[str]) -> Caller:
        if len(headers) == 1 and headers[0].startswith(TICKET_SCHEME):
            caller = self._tickets.caller(headers[0][len(TICKET_SCHEME) :])
            if caller is None or not self._is_known(caller.mark):
                raise self._error(info, "the call came with a ticket that is not good here, or no longer")
            return caller
        try:
            token = None if self._clients is None else self._clients.shown(headers)
        except Overloaded as error:
            self._refused(error, info)
            raise flight.FlightServerError(str(error)) from None
        if token is None:
            raise self._error(info, "the call came with another token than this cluster's")
        return Caller(token.name, is_of_cluster=False, mark=token.mark)

    def _error(self, info: flight.CallInfo, what: str) -> flight.FlightUnauthenticatedError:
        error = unproven(what)
        self._refused(error, info)
        return flight.FlightUnauthenticatedError(str(error))


def _values(headers: Mapping[str, list[str]], wanted: str) -> list[str]:
    return [value for name, values in headers.items() if name.lower() == wanted for value in values]


class Trusted(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark


class TrustedBy(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Says by which CAs a call's certificate was trusted: those of when its server began to serve, since another takes
    its place once they change."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self._mark = mark

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> Trusted:
        return Trusted(self._mark)


def unproven(what: str) -> AuthenticationFailed:
    return AuthenticationFailed(f"{what}: set security.token.file, or send the header `{AUTHORIZATION}: Bearer TOKEN`")
