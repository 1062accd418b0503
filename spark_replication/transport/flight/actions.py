"""Requests and answers over Arrow Flight: a server with a table of actions, and the call that asks one of them.

Bodies are the JSON of messages. The text of a Flight error starts with `CODE: message`, so that any Flight client can
read it; `error_of_flight` turns it back into our error tree. transport.security.security says where such a server may
listen, and whose calls it takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, Protocol
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from pyarrow import flight

from spark_replication.engine.replica.partition import is_half_done
from spark_replication.errors import (
    AuthenticationFailed,
    BrokerNotAvailable,
    InvalidRequest,
    Overloaded,
    ReplicationError,
    RequestTimedOut,
)
from spark_replication.messages.actions import DESCRIBE_TOKENS, INTRODUCE, PROVE, Action, Asked, Sees, Told
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.observing import DescribeTokens, KnownTokens
from spark_replication.process.logs import log_if_mistaken, log_mistake
from spark_replication.process.memory import keep_freed_memory
from spark_replication.process.threads import now_ms
from spark_replication.transport.flight.door import Door
from spark_replication.transport.flight.forwarding import (
    STRANGER_BYTES_MAX,
    Body,
    ForwardedCall,
    ForwardedContext,
    LargeCalls,
)
from spark_replication.transport.flight.listening import Listening
from spark_replication.transport.meter import CALL, UNKNOWN, Meter
from spark_replication.transport.proofs.call_check import NO_TOKEN, unproven
from spark_replication.transport.proofs.caller import ANYBODY, Caller
from spark_replication.transport.proofs.flight_client import NOT_CONNECTED, KnownClient, is_tls_failure, told_error
from spark_replication.transport.proofs.tickets import Tickets
from spark_replication.transport.security.audit import audited
from spark_replication.transport.security.certificates import Tls
from spark_replication.transport.security.expiry import Expiry
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import trusted_by

log = logging.getLogger(__name__)

_NO_FLIGHT = "Failed parsing HTTP/2"  # what the peer says first
_HUNG_UP = "Socket closed"  # while connecting: the peer refuses this side's TLS, or it has just ended


class Asker(NamedTuple):
    #: Its name, if it has one, and host.
    name: str
    sees: Sees


class Handled(NamedTuple):
    """Made by the functions below only, whose types say that action and handler fit."""

    action: Action[Any, Any]
    handler: Callable[[Any, Asker], msgspec.Struct]


def handled(action: Action[Asked, Told], handler: Callable[[Asked], Told]) -> Handled:
    """handler: returns the answer to a request, or raises the error that refuses it."""
    return Handled(action, lambda asked, _asker: handler(asked))


def handled_of(action: Action[Asked, Told], handler: Callable[[Asked, str], Told]) -> Handled:
    """As `handled`, with a handler that is also told who asks."""
    return Handled(action, lambda asked, asker: handler(asked, asker.name))


def handled_seen(action: Action[Asked, Told], handler: Callable[[Asked, Sees], Told]) -> Handled:
    """As `handled`, with a handler that is also told which topics the asker may see."""
    return Handled(action, lambda asked, asker: handler(asked, asker.sees))


class _NoSchemas(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """GetSchema is refused before it is begun: pyarrow would send the traceback of whatever refuses it."""

    def start_call(self, info: flight.CallInfo, headers: object) -> None:
        if info.method == flight.FlightMethod.GET_SCHEMA:
            _refuse("get_schema")


class Port(Protocol):
    """Whoever takes the calls of a server: pyarrow in this process, or another process (transport.flight.door)."""

    @property
    def port(self) -> int: ...
    def known(self, context: Any, principal: str, at_most: int | None) -> bool:
        """Whoever makes this call is let in. False: the principal has at_most other connections here."""
        ...

    def hang_up(self, peers: Container[str]) -> int: ...
    def stop(self, timeout_s: float) -> None: ...
    def shutdown(self) -> None: ...


class ActionServer:
    """Serves from birth."""

    def __init__(
        self,
        host: str,
        actions: Iterable[Handled],
        *,
        rights: Rights,
        port: int = 0,
        kinds: Iterable[str] = (),
        door: Door | None = None,
    ) -> None:
        """port: 0 lets the system choose; the attribute `port` then says which. kinds: the kinds of requests that the
        meter times besides actions. door: the process that takes the calls at this host; None: this one."""
        security = rights.security
        security.require_may_bind(host)
        keep_freed_memory()
        self._rights = rights
        self.quotas = rights.quotas
        self._tickets = Tickets(security.tokens_of, port=lambda: self.port, now_ms=now_ms)
        own = (
            handled(INTRODUCE, self._tickets.challenge),
            handled(PROVE, self._tickets.admitted),
            handled(DESCRIBE_TOKENS, self._known_tokens),
        )
        self._actions = {each.action.name: each for each in (*own, *actions)}
        self.meter = Meter((*self._actions, UNKNOWN, *kinds))
        #: Who has each open stream, and from where.
        self._streams: dict[object, tuple[Caller, str]] = {}
        self._stopped = threading.Event()  # streams that wait for their turn end then
        self._expiry = Expiry()
        self._large = LargeCalls()
        self._checks = security.checks(
            self._tickets, lambda error, info: self._refused(error, info.method.name.lower())
        )
        self._listening: Port
        if door is None:
            self._listening = Listening(
                self, host, port, tls=lambda: security.tls, middleware=self._middleware, look=self._look
            )
        else:
            self._listening = door
            door.opens(self._forwarded, self._look)

    @property
    def port(self) -> int:
        return self._listening.port

    def _middleware(self, tls: Tls | None) -> dict[str, flight.ServerMiddlewareFactory]:
        """What a server has that begins with this."""
        return {**self._checks, **trusted_by("" if tls is None else tls.callers_mark), "schemas": _NoSchemas()}

    def _look(self) -> None:
        self._look_at_streams()
        self._expiry.look(self._rights.security.tls)

    @contextmanager
    def _streaming(self, context: flight.ServerCallContext, caller: Caller) -> Iterator[None]:
        """A stream that ends once its caller is known no longer, whether anything comes over it or not."""
        stream = object()
        self._streams[stream] = caller, context.peer()
        try:
            yield
        finally:
            del self._streams[stream]

    def _look_at_streams(self) -> None:
        gone = {peer for caller, peer in self._streams.copy().values() if not self._rights.is_known(caller)}
        if gone and (count := self._listening.hang_up(gone)):
            log.info("hung up on %d connections whose callers are known no longer", count)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        """The answer, and a proof of it if its caller wants that: of an error, too."""
        return self._answered(context, action.type, action.body.to_pybytes())

    def _forwarded(self, context: ForwardedContext, asked: ForwardedCall, body: Body) -> list[bytes]:
        """The same, of a call that another process has taken: of any kind."""
        context.check({**self._checks, **trusted_by(asked.ca)})
        if asked.method == flight.FlightMethod.LIST_ACTIONS.name:
            return [text.encode() for each in self.list_actions(context) for text in each]
        if asked.method != flight.FlightMethod.DO_ACTION.name:
            _refuse(asked.method.lower())
        if body.bytes <= STRANGER_BYTES_MAX:
            return self._answered(context, asked.action, body.read())
        self._caller(context)
        with told_to_client():
            return self._large.answered(lambda: self._answered(context, asked.action, body.read()))

    def _answered(self, context: Any, name: str, body: bytes) -> list[bytes]:
        question = self._rights.security.question(context, name, body)
        try:
            self._rights.security.require_own_cluster(context)
            answer = self._carried_out(context, name, body)
        except flight.FlightServerError as error:
            if question is None:
                raise
            return question.answered(str(error).encode(), is_error=True)
        return [answer] if question is None else question.answered(answer)

    def _carried_out(self, context: flight.ServerCallContext, name: str, body: bytes) -> bytes:
        known = self._actions.get(name)
        kind = UNKNOWN if known is None else known.action.name
        # Nothing of a call is looked at, or counted, whose caller is not known.
        caller = ANYBODY if known is not None and known.action.needs is None else self._caller(context)
        with told_to_client(), self.meter.timing(kind), self.meter.refusing(kind):
            if caller is not ANYBODY:
                self._rights.quotas.of(caller).request()
            if known is None:
                raise InvalidRequest(f"action {name!r} is not known here: {', '.join(sorted(self._actions))} are")
            asked, host = known.action, host_of(context.peer())
            with audited(asked.name, body, who=str(caller), host=host, audit=self._rights.audit) as answered:
                request = from_json(body, asked.request)
                needs = () if asked.needs is None else tuple(asked.needs(request))
                self._rights.require(caller, needs)
                sees = self._rights.seen_by(caller, {need.topic for need in needs})
                asker = Asker(f"{caller.name} at {host}" if caller.name else host, sees)
                answer = known.handler(request, asker)
                answered(answer)
            if not self._rights.sees_all(caller):
                answer = asked.seen_groups(asked.seen(answer, asker.sees), self._rights.sees_group(caller))
            return to_json(answer)

    def _caller(self, context: flight.ServerCallContext) -> Caller:
        caller = self._rights.security.caller(context)
        if caller is None:
            error = unproven(NO_TOKEN)
            self._refused(error, "do_action", host_of(context.peer()))
            raise flight.FlightUnauthenticatedError(str(error))
        at_most = self._rights.quotas.limit(caller, "connections")
        if not self._listening.known(context, caller.name, at_most):
            refusal = Overloaded(
                f"{caller} has {at_most} connections here, as many as it may (quota connections): close some, or retry "
                "later"
            )
            self._refused(refusal, "call")
            raise flight.FlightServerError(str(refusal))
        return caller._replace(host=host_of(context.peer()))

    def _refused(self, error: ReplicationError, method: str, host: str = "") -> None:
        """Count a call that is refused before anybody looks at it, and tell of it if its caller is not known."""
        self.meter.refused(CALL, error.code)
        if isinstance(error, AuthenticationFailed):
            self._rights.audit.stranger(error, method, host)

    def _known_tokens(self, asked: DescribeTokens) -> KnownTokens:
        security = self._rights.security
        known = tuple(mark for mark in asked.marks if security.is_known(mark))
        there = Counter(token.name for token in security.tokens.all()) if security.tokens is not None else Counter()
        counts = {name: there[name] for name in asked.principals if name in there}
        return KnownTokens(marks=known, counts=counts, trouble=security.trouble)

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        return [(name, each.action.request.__doc__ or "") for name, each in sorted(self._actions.items())]

    # What is not served: pyarrow's own refusals have a traceback in them.

    def do_put(self, context: flight.ServerCallContext, *_: Any) -> None:
        _refuse("do_put")

    def do_exchange(self, context: flight.ServerCallContext, *_: Any) -> None:
        _refuse("do_exchange")

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        _refuse("do_get")

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        _refuse("get_flight_info")

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        _refuse("list_flights")

    def stop(self, timeout_s: float) -> None:
        """Take no new calls, and give those under way `timeout_s`. A stream that its client holds open ends with the
        process: pyarrow's shutdown would wait for it without end."""
        self._stopped.set()
        self._listening.stop(timeout_s)
        self._large.close()

    def shutdown(self) -> None:
        """Take no new calls, and wait for those under way."""
        self._stopped.set()
        self._listening.shutdown()
        self._large.close()


def host_of(peer: str) -> str:
    """`127.0.0.1` of `ipv4:127.0.0.1:53210`, which is how gRPC names a caller."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]) or peer


@contextmanager
def told_to_client() -> Iterator[None]:
    """Turn an error that is raised within into a Flight error. pyarrow would send the traceback of any other. One that
    nobody expected ends the call alone, unless a partition was in hand: then it ends the process (W1)."""
    try:
        yield
    except ReplicationError as error:
        log_if_mistaken(log, error)
        raise flight.FlightServerError(str(error)) from error
    except flight.FlightError:
        raise
    except Exception as error:
        if is_half_done(error):  # pyarrow's threads have no hook: this is what Python does for its own
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))
        log_mistake(log, error, "a call failed")
        unexpected = ReplicationError("this process met an error that nobody expected: its log has more")
        raise flight.FlightServerError(str(unexpected)) from error


def _refuse(call: str) -> NoReturn:
    with told_to_client():
        raise InvalidRequest(f"{call} is not served here: see design/WIRE.md")


def call(client: KnownClient, action: Action[Asked, Told], request: Asked, timeout_ms: int) -> Told:
    """Send one request and return its answer. Every failure is raised as an error of our tree."""
    deadline_s = time.monotonic() + timeout_ms / 1000
    try:
        client.introduce(timeout_ms / 1000)
        options = flight.FlightCallOptions(timeout=max(0.001, deadline_s - time.monotonic()))
        answers = [result.body.to_pybytes() for result in client.do_action((action.name, to_json(request)), options)]
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        failed = error_of_flight(error)
        failed.maybe_written = failed.maybe_written and not action.only_asks
        raise failed from error
    if len(answers) != 1:
        raise InvalidRequest(f"{action.name} was answered with {len(answers)} messages, not with one")
    return from_json(answers[0], action.answer)


def _reason(text: str) -> str:
    """What went wrong, without how Flight and gRPC lead up to it and what they add."""
    return text.rpartition("last error: ")[2].removeprefix("UNKNOWN: ").partition(". gRPC client debug context")[0]


def _why_not_connected(text: str) -> str:
    """What the peer did instead; empty if it did nothing."""
    if _NO_FLIGHT in text:
        return (
            "what listens there is no broker, a cluster's page perhaps, or it wants TLS: give a broker's address, and "
            "see security.mode"
        )
    if _HUNG_UP in text:
        return (
            f"the peer hung up at once: {text}. If it lives, it wants TLS, or another certificate: see security.mode, "
            "security.tls.mutual and security.tls.certificate.file"
        )
    return ""


def error_of_flight(error: Exception) -> ReplicationError:
    """The error that a Flight exception stands for: the server's own, or that there was no answer."""
    text = str(error)
    known = told_error(error)
    if known is not None:
        return known
    if isinstance(error, flight.FlightTimedOutError):
        return RequestTimedOut(f"no answer in time: {text}", maybe_written=True)
    if isinstance(error, flight.FlightUnauthenticatedError):
        return AuthenticationFailed(f"the peer refused the call: {text}")
    if is_tls_failure(error):
        return AuthenticationFailed(
            f"TLS failed: {text}. Is security.mode the same on both sides, and is the peer's certificate signed by "
            "security.tls.ca.file, for the host that was dialled?"
        )
    if NOT_CONNECTED in text and (why := _why_not_connected(text)):
        return BrokerNotAvailable(why)
    if isinstance(error, (flight.FlightUnavailableError, flight.FlightCancelledError)):
        return BrokerNotAvailable(f"the connection failed: {_reason(text)}", maybe_written=NOT_CONNECTED not in text)
    if isinstance(error, flight.FlightServerError):  # ours are known
        return BrokerNotAvailable(f"what answers is no server of a cluster: {text}", maybe_written=True)
    return ReplicationError(f"the Flight call failed: {text}", maybe_written=True)
