"""A Flight client that proves first that it knows the token, if it has one, and wants the server to prove the same.

What the server gives for it, the ticket, goes with each call. A server that has started again knows none of before: its
refusal comes before the call is begun, so the call is made again, once.

An answer to an action is believed if it comes with a proof (transport.proofs.answer_proofs), and an error likewise.
What comes over a stream is not proven: none of our programs goes by it where there are tokens and no TLS.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
from pyarrow import flight

from spark_replication.decoding import error_of_text
from spark_replication.errors import (
    AuthenticationFailed,
    BrokerNotAvailable,
    ClientClosed,
    InvalidRequest,
    ReplicationError,
    UnsupportedVersion,
)
from spark_replication.messages.actions import INTRODUCE, PROVE
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.introducing import Admission, Challenge, Introduce, Prove
from spark_replication.messages.replication import NONCE_BYTES
from spark_replication.transport.proofs.answer_proofs import (
    NONCE_HEADER,
    Question,
    believed_unproven,
    new_nonce,
    unproven_answer,
)
from spark_replication.transport.proofs.call_check import TICKET_SCHEME
from spark_replication.transport.proofs.tickets import CHECK_FILES
from spark_replication.transport.proofs.token import AUTHORIZATION, Token, session_of
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.proofs.verifier import proofs_of, proving_server

Answer = TypeVar("Answer", Challenge, Admission)

INTRODUCTION_S = 5.0
RENEWED_AT = 0.8  # of a ticket's time


# In the text of a Flight error.
NOT_CONNECTED = "failed to connect"  # nothing was sent
_DETAIL = ". Detail: "  # where gRPC's own words begin
_TLS_REFUSED = ("SSL_ERROR_SSL", "is not in peer certificate")  # this side refuses the peer's TLS


def told_error(error: Exception) -> ReplicationError | None:
    """The error of our tree that a Flight error tells of, if it does."""
    return error_of_text(str(error).partition(_DETAIL)[0])


def is_tls_failure(error: Exception) -> bool:
    text = str(error)
    return NOT_CONNECTED in text and any(words in text for words in _TLS_REFUSED)


class Held(NamedTuple):
    """A ticket, and what it was given for."""

    ticket: str
    mark: str
    renew_s: float
    #: Of the session: proofs of answers are made with it. It is never sent.
    key: bytes = b""


class Purse:
    """The tickets that the clients of a process have, by the address of the server. Thread-safe."""

    SERVERS_MAX = 1_000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}

    def of(self, address: str, token: Token) -> Held | None:
        held = self._held.get(address)
        is_good = held is not None and held.mark == token.mark and time.monotonic() < held.renew_s
        return held if is_good else None

    def put(self, address: str, held: Held) -> None:
        with self._lock:
            while len(self._held) >= self.SERVERS_MAX:
                del self._held[next(iter(self._held))]
            self._held[address] = held

    def drop(self, address: str, ticket: str) -> None:
        with self._lock:
            held = self._held.get(address)
            if held is not None and held.ticket == ticket:
                del self._held[address]


class ProcessIdentity(NamedTuple):
    """Who a process is to Flight servers."""

    tokens: Tokens
    is_of_cluster: bool
    purse: Purse


class Renewed(Protocol):
    """The certificates of this process."""

    def now(self) -> object: ...
    def look(self) -> bool: ...


class KnownClient:
    """As a flight.FlightClient. Thread-safe."""

    def __init__(
        self,
        address: str,
        dial: Callable[[Sequence[flight.ClientMiddlewareFactory]], flight.FlightClient],
        *,
        identity: ProcessIdentity | None,
        certificates: Renewed | None,
    ) -> None:
        """address: host:port. dial: makes a client with this middleware and the certificates of now. identity: None: it
        proves nothing."""
        self._address = address
        self._dial = dial
        self._identity = identity
        self._certificates = certificates
        self._shown = _Shown()
        self._dialled_with: object = None
        #: None: it is closed.
        self._client: flight.FlightClient | None = self._dialled()

    def _dialled(self) -> flight.FlightClient:
        """Dial with the certificates of now. Streams over the client of before go on."""
        if self._certificates is not None:
            self._dialled_with = self._certificates.now()
        return self._dial([self._shown])

    @property
    def _current(self) -> flight.FlightClient:
        client = self._client
        if client is None:
            raise ClientClosed(f"the client of {self._address} is closed: open another")
        if self._certificates is not None and self._certificates.now() is not self._dialled_with:
            self._client = client = self._dialled()
        return client

    def close(self) -> None:
        """Begin no call any more. One that is under way ends as it would have, and then lets go of the connection:
        FlightClient.close frees what a call on another thread goes by, which ends the process."""
        self._client = None

    def __enter__(self) -> KnownClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def do_action(self, action: Any, options: Any = None) -> Iterator[flight.Result]:
        held, is_fresh = self._introduced(INTRODUCTION_S)
        try:
            return iter(self._believed(action, options, held))
        except flight.FlightUnauthenticatedError:
            self._forget(held)
            if held is None or is_fresh:
                raise
        held, _ = self._introduced(INTRODUCTION_S)
        return iter(self._believed(action, options, held))

    def _believed(self, action: Any, options: Any, held: Held | None) -> list[flight.Result]:
        """held: None: nothing is proven here."""
        if held is None:
            return self._asked(action, options)
        named = action if isinstance(action, flight.Action) else flight.Action(*action)
        question = Question(held.key, new_nonce(), named.type, named.body.to_pybytes())
        try:
            with self._shown.asking(held.ticket, question.nonce):
                messages = [each.body.to_pybytes() for each in self._asked(named, options)]
            answer, is_error = question.believed(messages, self._address)
        except BrokerNotAvailable:
            self._forget(held)
            raise
        except flight.FlightUnauthenticatedError:
            raise
        except (flight.FlightError, pa.ArrowException) as error:
            if not isinstance(error, flight.FlightServerError) and told_error(error) is None:
                raise  # of gRPC: there was no answer
            self._forget(held)
            raise unproven_answer(self._address, str(error)) from error
        if is_error:
            raise flight.FlightServerError(answer.decode(errors="replace"))
        return [flight.Result(answer)]

    def _asked(self, action: Any, options: Any) -> list[flight.Result]:
        client = self._current
        try:
            return [*client.do_action(action, options)]
        except flight.FlightUnavailableError as error:
            # Nothing was sent if TLS failed, and that may be since this side has not looked at its files yet.
            if not is_tls_failure(error) or self._certificates is None:
                raise
            self._certificates.look()
            if self._current is client:
                raise
        return [*self._current.do_action(action, options)]

    def do_put(self, *given: Any, **named: Any) -> Any:
        self.introduce()
        return self._current.do_put(*given, **named)

    def do_get(self, *given: Any, **named: Any) -> Any:
        self.introduce()
        return self._current.do_get(*given, **named)

    def do_exchange(self, *given: Any, **named: Any) -> Any:
        self.introduce()
        return self._current.do_exchange(*given, **named)

    def get_flight_info(self, *given: Any, **named: Any) -> Any:
        self.introduce()
        return self._current.get_flight_info(*given, **named)

    def get_schema(self, *given: Any, **named: Any) -> Any:
        self.introduce()
        return self._current.get_schema(*given, **named)

    def list_flights(self, *given: Any, **named: Any) -> Any:
        self.introduce()
        return self._current.list_flights(*given, **named)

    def list_actions(self, *given: Any, **named: Any) -> Any:
        self.introduce()
        return self._current.list_actions(*given, **named)

    def introduce(self, timeout_s: float = INTRODUCTION_S) -> bool:
        """Have a ticket of the server, unless nothing is proven here. Returns whether it is new. Raises
        AuthenticationFailed if one side does not know the token, and BrokerNotAvailable if no such server answers in
        time."""
        return self._introduced(timeout_s)[1]

    def _introduced(self, timeout_s: float) -> tuple[Held | None, bool]:
        """What was given for it, and whether that is new. None: nothing is proven here."""
        identity = self._identity
        if identity is None:
            return None, False
        token = identity.tokens.own
        held = identity.purse.of(self._address, token)
        is_new = held is None
        if held is None:
            held = self._admission(identity, token, time.monotonic() + timeout_s)
            identity.purse.put(self._address, held)
        self._shown.ticket = held.ticket
        return held, is_new

    def _forget(self, held: Held | None) -> None:
        if self._identity is not None and held is not None:
            self._identity.purse.drop(self._address, held.ticket)

    def _admission(self, identity: ProcessIdentity, token: Token, deadline_s: float) -> Held:
        port = int(self._address.rpartition(":")[2])
        hello = Introduce(
            name=token.name, is_of_cluster=identity.is_of_cluster, port=port, nonce=os.urandom(NONCE_BYTES)
        )
        try:
            challenge = _read(self._answer(INTRODUCE.name, to_json(hello), deadline_s), Challenge)
            given = proofs_of(token, hello, challenge)
            prove = Prove(introduced=hello, challenge=challenge, proof=given.proof, signatures=given.signatures)
            admission = _read(self._answer(PROVE.name, to_json(prove), deadline_s), Admission)
        except InvalidRequest as error:  # another program may have the port of a server that has ended
            raise BrokerNotAvailable(f"what answers at {self._address} is no broker: {error.message}") from error
        except flight.FlightTimedOutError as error:
            raise BrokerNotAvailable(f"{self._address} does not answer: {error}") from error
        shared = proving_server(token, hello, challenge, admission.proof)
        if shared is None:
            raise AuthenticationFailed(
                f"the server at {self._address} does not know this cluster's token: {CHECK_FILES}"
            )
        renew_s = time.monotonic() + admission.lasts_ms / 1000 * RENEWED_AT
        key = shared.session_key(session_of(hello, challenge.nonce))
        return Held(admission.ticket, token.mark, renew_s, key)

    def _answer(self, action: str, body: bytes, deadline_s: float) -> bytes:
        """Without a ticket."""
        options = flight.FlightCallOptions(timeout=max(0.001, deadline_s - time.monotonic()))
        try:
            with self._shown.nothing():
                answers = [each.body.to_pybytes() for each in self._asked((action, body), options)]
        except (flight.FlightError, pa.ArrowException) as error:
            known = told_error(error)
            if known is not None:
                raise believed_unproven(known, self._address) from error
            if isinstance(error, flight.FlightServerError):
                raise InvalidRequest(str(error)) from error
            raise
        if len(answers) != 1:
            raise InvalidRequest(f"{action} was answered with {len(answers)} messages, not with one")
        found: bytes = answers[0]
        return found


class _Shown(flight.ClientMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """The headers of calls, once there is a ticket."""

    def __init__(self) -> None:
        super().__init__()
        self.ticket = ""
        self._here = threading.local()

    @contextmanager
    def nothing(self) -> Iterator[None]:
        """For the calls of this thread within the block."""
        with self._instead({}):
            yield

    @contextmanager
    def asking(self, ticket: str, nonce: bytes) -> Iterator[None]:
        """The calls of this thread within the block show this ticket, and want a proof of the answer."""
        with self._instead({**_showing(ticket), NONCE_HEADER: nonce.hex()}):
            yield

    @contextmanager
    def _instead(self, headers: Mapping[str, str]) -> Iterator[None]:
        self._here.headers = headers
        try:
            yield
        finally:
            self._here.headers = None

    def start_call(self, info: flight.CallInfo) -> flight.ClientMiddleware | None:
        headers = getattr(self._here, "headers", None)
        if headers is None:
            headers = _showing(self.ticket) if self.ticket else {}
        return _Sending(headers) if headers else None


def _read(answer: bytes, kind: type[Answer]) -> Answer:
    """Raises InvalidRequest: a server of another version has refused before, in words."""
    try:
        return from_json(answer, kind)
    except UnsupportedVersion as error:
        raise InvalidRequest(error.message) from error


def _showing(ticket: str) -> dict[str, str]:
    return {AUTHORIZATION: f"{TICKET_SCHEME}{ticket}"}


class _Sending(flight.ClientMiddleware):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._headers = headers

    def sending_headers(self) -> Mapping[str, str]:
        return self._headers
