"""One ZooKeeper session: from its first connect until it is closed or lost. After that, open another.

Rules:
- Every request is answered exactly once, whatever kazoo does.
- Reads are repeated over lost connections until the session ends. A multi() is sent once, and its sender decides what a
  lost answer means.
- At most `REQUESTS_IN_FLIGHT_MAX` requests are with kazoo, and none while there is no connection: then they wait here,
  in order.
- Answers come on kazoo's completion thread (on another when the session ends), watches on its callback thread. Both
  must not block, and must not call the waiting methods (`*_now`, `read_many`, `read_each`, `children_many`).
"""

from __future__ import annotations

import enum
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from spark_replication.errors import (
    BrokerNotAvailable,
    InvalidConfig,
    ReplicationError,
    RequestTimedOut,
    UnsupportedVersion,
)
from spark_replication.zk.kazoo_handler import CONNECT_SHARES_MIN, NeverBlockingHandler
from spark_replication.zk.login import NOBODY, Login
from spark_replication.zk.multi_read import multi_read_async
from spark_replication.zk.operations import (
    NOT_PERMITTED,
    NOWHERE,
    READS_AT_ONCE_MAX,
    Check,
    Committed,
    Create,
    Delete,
    Folder,
    Node,
    Operation,
    Rejected,
    RejectionReason,
    SetData,
    UnreadNode,
    folder_of,
    is_possible,
    multi_outcome,
    node_of,
    nodes_of,
    stat_of,
)
from spark_replication.zk.overdue import Overdue

REQUESTS_IN_FLIGHT_MAX = 200
RECONNECT_DELAY_S = 0.05
RECONNECT_DELAY_MAX_S = 0.5

log = logging.getLogger(__name__)
# kazoo logs each reconnect attempt as a warning. The state callbacks log a lost connection once.
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.CRITICAL)


class ConnectionLost(RequestTimedOut):
    """The connection was lost before the answer came: the write may have taken effect."""


class SessionLost(BrokerNotAvailable):
    """The session has ended, and with it its ephemeral nodes. Open another."""


class NotPermitted(InvalidConfig):
    """ZooKeeper does not let this session read, or change, that node."""


class SessionState(enum.Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no connection: the session may have ended, or not
    LOST = "lost"


MultiOutcome = Committed | Rejected | ReplicationError
ReadOutcome = Node | ReplicationError | None
Watch = Callable[[object], None]
Answer = TypeVar("Answer")
Then = Callable[[Any], None]

_CONNECTION_ERRORS = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.ConnectionDropped,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.SessionMovedError,
)


class _Request:
    __slots__ = ("parse", "repeat", "start", "then")

    def __init__(self, start: Callable[[], Any], parse: Callable[[Any], object], then: Then, *, repeat: bool) -> None:
        """start: hands the request to kazoo. repeat: it may be sent again, since it changes nothing."""
        self.start = start
        self.parse = parse
        self.then = then
        self.repeat = repeat


class Session:
    def __init__(
        self, address: str, chroot: str, *, session_timeout_ms: int, request_timeout_ms: int, login: Login
    ) -> None:
        """Use `connect`. request_timeout_ms: how long a waiting method waits for each answer."""
        self.address = address
        self.login = login
        self.id = 0
        self._root = chroot.rstrip("/")
        self._request_timeout_s = request_timeout_ms / 1000
        self._lock = threading.RLock()
        self._waiting: deque[_Request] = deque()
        self._in_flight: set[_Request] = set()
        self._ended = False
        self._listeners: list[Callable[[SessionState], None]] = []
        self._session_timeout_ms = session_timeout_ms
        self._overdue = Overdue(session_timeout_ms / 1000, serves=self._serves_others, end=self._refused)
        self._why_ended = ""
        self._client = KazooClient(
            hosts=_with_attempts(address),
            timeout=session_timeout_ms / 1000,
            handler=NeverBlockingHandler(self._failed),
            connection_retry=KazooRetry(
                max_tries=-1, delay=RECONNECT_DELAY_S, backoff=2, max_delay=RECONNECT_DELAY_MAX_S
            ),
            logger=_kazoo_log,
            **login.of_kazoo,
        )
        self._client.add_listener(self._state_changed)

    @classmethod
    def connect(
        cls,
        address: str,
        chroot: str,
        *,
        session_timeout_ms: int,
        request_timeout_ms: int,
        connect_timeout_ms: int | None = None,
        login: Login = NOBODY,
    ) -> Session:
        """A session that is connected, and whose chroot exists. connect_timeout_ms: None for request_timeout_ms."""
        login.require_may_be_sent(address)
        session = cls(
            address,
            chroot,
            session_timeout_ms=session_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            login=login,
        )
        wait_ms = request_timeout_ms if connect_timeout_ms is None else connect_timeout_ms
        try:
            session._client.start(timeout=wait_ms / 1000)
            session.id = session._client.client_id[0]
            session._client.ensure_path(session._root or "/", acl=login.acl_of(""))
        except (
            kazoo_errors.KazooException,
            KazooTimeoutError,
            TypeError,
        ) as error:  # TypeError: client_id is None once dropped
            session.close()
            if isinstance(error, (kazoo_errors.AuthFailedError, kazoo_errors.NoAuthError)):
                raise InvalidConfig(f"ZooKeeper at {address} refuses these credentials: {error!r}") from error
            raise BrokerNotAvailable(
                f"no ZooKeeper answers at {address} within {wait_ms} ms ({type(error).__name__}): start it, or correct "
                f"the address{_of_tls(login)}"
            ) from error
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            session.close()
            raise BrokerNotAvailable(
                f"this process can open no session with ZooKeeper at {address} ({error}): raise its limit of open "
                "files or of threads (`ulimit -n`, `ulimit -u`)"
            ) from error
        return session

    @property
    def root_bytes(self) -> int:
        """How many bytes the chroot adds to every path on the wire."""
        return len(self._root.encode())

    @property
    def lost(self) -> bool:
        return self._ended

    @property
    def connected(self) -> bool:
        return not self._ended and bool(self._client.connected)

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        """Call the listener with every change from now on, and at once if the session is lost. Not after close()."""
        with self._lock:
            ended = self._ended
            if not ended:
                self._listeners.append(listener)
        if ended:
            listener(SessionState.LOST)

    def close(self) -> None:
        """End the session: its ephemeral nodes go now. Outstanding requests are answered with SessionLost."""
        with self._lock:
            self._listeners.clear()
        unanswered = self._end()
        if unanswered is not None:
            self._bury(unanswered)

    # Requests that answer through `then`, exactly once.

    def read(self, path: str, then: Callable[[ReadOutcome], None], watch: Watch | None = None) -> None:
        """Read the node; None if there is none, and then no watch is set. A bound method is set as a watch only
        once."""
        self._submit(_Request(partial(self._client.get_async, self._root + path, watch), node_of, then, repeat=True))

    def stat(self, path: str, then: Callable[[ReadOutcome], None], watch: Watch | None = None) -> None:
        """Read the node without its data; None if there is none. The watch is set in both cases."""
        self._submit(_Request(partial(self._client.exists_async, self._root + path, watch), stat_of, then, repeat=True))

    def children(
        self, path: str, then: Callable[[list[str] | ReplicationError | None], None], watch: Watch | None = None
    ) -> None:
        """Read the names of the children, sorted; None if there is no such node."""
        start = partial(self._client.get_children_async, self._root + path, watch)
        self._submit(_Request(start, sorted, then, repeat=True))

    def _folder(self, path: str, watch: Watch | None, then: Callable[[Folder | ReplicationError | None], None]) -> None:
        start = partial(self._client.get_children_async, self._root + path, watch, include_data=True)
        self._submit(_Request(start, folder_of, then, repeat=True))

    def read_some(
        self, paths: Sequence[str], then: Callable[[list[Node | UnreadNode | None] | ReplicationError], None]
    ) -> None:
        """Read at most READS_AT_ONCE_MAX nodes in one request. A node that may not be read is UnreadNode."""
        start = partial(multi_read_async, self._client, tuple(self._root + path for path in paths))
        self._submit(_Request(start, nodes_of, then, repeat=True))

    def commit(self, operations: Sequence[Operation], then: Callable[[MultiOutcome], None]) -> None:
        """Send one multi(): all of the operations are stored, or none. ConnectionLost: nobody knows which."""
        impossible = next((place for place, each in enumerate(operations) if not is_possible(each)), None)
        if impossible is not None:
            then(Rejected(impossible, RejectionReason.BAD_VERSION))
            return
        start = partial(self._start_multi, tuple(operations))
        self._submit(_Request(start, partial(multi_outcome, tuple(operations)), then, repeat=False))

    # The same requests, waiting for the answer.

    def sync_now(self) -> None:
        """Wait until later reads are as new as everything that anybody was told before: servers may lag behind."""
        start = partial(self._client.sync_async, self._root or "/")
        self._wait(lambda then: self._submit(_Request(start, _synced, then, repeat=True)), "catching up")

    def read_now(self, path: str) -> Node | None:
        found: Node | None = self._wait(partial(self.read, path), f"reading {path}")
        return found

    def folder_now(self, path: str, watch: Watch | None = None) -> Folder:
        """List a folder; empty if there is no such node."""
        found: Folder | None = self._wait(partial(self._folder, path, watch), f"listing {path}")
        return found or Folder([], NOWHERE)

    def children_now(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of the children, sorted; empty if there is no such node."""
        return self._wait(partial(self.children, path, watch=watch), f"listing {path}") or []

    def commit_now(self, operations: Sequence[Operation]) -> Committed | Rejected:
        outcome: Committed | Rejected = self._wait(partial(self.commit, operations), f"writing {operations[0].path}")
        return outcome

    def read_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        """As `read_each`, for a caller that needs all of them: raises NotPermitted if one may not be read."""
        found: list[Node | None] = []
        for path, node in zip(paths, self.read_each(paths, watch), strict=True):
            if isinstance(node, UnreadNode):
                raise NotPermitted(f"{path}: {node.why}")
            found.append(node)
        return found

    def read_each(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | UnreadNode | None]:
        """Read nodes, pipelined, and in multi-reads if no watch is to be set. A node that may not be read is
        UnreadNode, and has no watch. Raises if no answer comes for request_timeout_ms."""
        if watch is not None:
            asked = [partial(self._ask_one, path, watch) for path in paths]
        else:
            chunks = [paths[start : start + READS_AT_ONCE_MAX] for start in range(0, len(paths), READS_AT_ONCE_MAX)]
            asked = [partial(self.read_some, chunk) for chunk in chunks]
        found = self._gather(asked, f"reading {len(paths)} nodes such as {paths[:1]}")
        return [node for nodes in found for node in nodes]

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[list[str] | UnreadNode]:
        """As `children_now`, pipelined. A node that may not be listed is UnreadNode, and has no watch."""
        asked = [partial(self._ask_children, path, watch) for path in paths]
        return [names or [] for names in self._gather(asked, f"listing {len(paths)} nodes such as {paths[:1]}")]

    def is_open(self, path: str) -> bool:
        """Whether anybody may change this node. Not if there is none, or only its owner may tell."""
        ask = partial(self._client.get_acls_async, self._root + path or "/")
        acls = self._wait(
            lambda then: self._submit(_Request(ask, _acls_of, then, repeat=True)), f"looking at the ACL of {path}"
        )
        return any(each.id == ANYONE_ID_UNSAFE and each.perms & ~Permissions.READ for each in acls or ())

    def give_acls(self, acls: Sequence[tuple[str, list[ACL]]]) -> None:
        """Give these nodes these ACLs, pipelined. A node that is gone needs none."""
        asked = [partial(self._give_acl, path, acl) for path, acl in acls]
        self._gather(asked, f"setting the ACLs of {len(acls)} nodes")

    def _give_acl(self, path: str, acl: list[ACL], then: Then) -> None:
        start = partial(self._client.set_acls_async, self._root + path or "/", acl)
        self._submit(_Request(start, stat_of, then, repeat=True))

    def _gather(self, asked: Sequence[Callable[[Then], None]], what: str) -> list[Any]:
        """All answers, in the order in which they were asked for."""
        answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        for place, ask in enumerate(asked):
            ask(partial(_put_at, answers, place))
        found: list[Any] = [None] * len(asked)
        for _ in asked:
            place, outcome = self._take(answers, what)
            if isinstance(outcome, ReplicationError):
                raise outcome
            found[place] = outcome
        return found

    def _ask_one(self, path: str, watch: Watch, then: Then) -> None:
        def read(outcome: ReadOutcome) -> None:
            if isinstance(outcome, NotPermitted):
                then([UnreadNode(str(outcome))])
            else:
                then(outcome if isinstance(outcome, ReplicationError) else [outcome])

        self.read(path, read, watch)

    def _ask_children(self, path: str, watch: Watch | None, then: Then) -> None:
        def listed(outcome: list[str] | ReplicationError | None) -> None:
            then(UnreadNode(str(outcome)) if isinstance(outcome, NotPermitted) else outcome)

        self.children(path, listed, watch)

    def _wait(self, ask: Callable[[Then], None], what: str) -> Any:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        ask(answers.put)
        outcome = self._take(answers, what)
        if isinstance(outcome, ReplicationError):
            raise outcome
        return outcome

    def _take(self, answers: queue.SimpleQueue[Answer], what: str) -> Answer:
        try:
            return answers.get(timeout=self._request_timeout_s)
        except queue.Empty:
            raise RequestTimedOut(
                f"ZooKeeper at {self.address} did not answer within {self._request_timeout_s} s ({what}): {self._cure}",
                maybe_written=True,
            ) from None

    @property
    def _cure(self) -> str:
        if self.connected or self._ended:
            return "check that it runs, and retry"
        return "this session has no connection. Check that ZooKeeper runs; if it serves others, another session opens"

    # The window.

    def _submit(self, request: _Request) -> None:
        with self._lock:
            ended = self._ended
            if not ended:
                self._waiting.append(request)
                self._pump()
        if ended:
            request.then(self._session_lost())

    def _pump(self) -> None:
        with self._lock:
            # kazoo reports SUSPENDED only after it has failed all requests that it had. Until then it would fail each
            # repeated read as well.
            while self._client.connected and self._waiting and len(self._in_flight) < REQUESTS_IN_FLIGHT_MAX:
                request = self._waiting.popleft()
                self._in_flight.add(request)
                request.start().rawlink(partial(self._answered, request))

    def _answered(self, request: _Request, result: Any) -> None:
        error = result.exception
        with self._lock:
            if request not in self._in_flight:
                return  # answered when the session ended
            self._in_flight.remove(request)
            again = request.repeat and isinstance(error, _CONNECTION_ERRORS)
            if again:
                self._waiting.append(request)
            self._pump()
        if again:
            return
        if error is None:
            request.then(request.parse(result.value))
        elif request.repeat and isinstance(error, kazoo_errors.NoNodeError):
            request.then(None)
        else:
            request.then(self._translated(error))

    def _start_multi(self, operations: Sequence[Operation]) -> Any:
        transaction = self._client.transaction()
        for operation in operations:
            path = self._root + operation.path
            match operation:
                case Create():
                    acl = self.login.acl_of(operation.path)
                    kind = {"ephemeral": operation.ephemeral, "sequence": operation.sequence}
                    transaction.create(path, operation.data, acl, **kind)
                case SetData():
                    transaction.set_data(path, operation.data, operation.version)
                case Delete():
                    transaction.delete(path, operation.version)
                case Check():
                    transaction.check(path, operation.version)
        return transaction.commit_async()

    def _translated(self, error: Exception) -> ReplicationError:
        translated: ReplicationError
        if isinstance(error, _CONNECTION_ERRORS):
            translated = ConnectionLost(
                f"the connection to ZooKeeper at {self.address} went before the answer came: read what is stored",
                maybe_written=True,
            )
        elif isinstance(error, (kazoo_errors.SessionExpiredError, kazoo_errors.ConnectionClosedError)):
            translated = self._session_lost()
        elif isinstance(error, kazoo_errors.NoAuthError):
            translated = NotPermitted(f"ZooKeeper at {self.address} does not permit it: {NOT_PERMITTED}")
        elif isinstance(error, kazoo_errors.AuthFailedError):
            translated = InvalidConfig(f"ZooKeeper at {self.address} refuses these credentials: {error!r}")
        elif isinstance(error, kazoo_errors.UnimplementedError):
            translated = UnsupportedVersion(f"ZooKeeper at {self.address} is older than 3.6: upgrade it")
        else:
            translated = ReplicationError(f"ZooKeeper at {self.address} answered {error!r}")
        translated.__cause__ = error
        return translated

    def _session_lost(self) -> SessionLost:
        return SessionLost(
            f"session {self.id:#x} with ZooKeeper at {self.address} has ended{self._why_ended}: open another"
        )

    # The session's own state. kazoo calls this on its connection thread, which must not block.

    def _state_changed(self, state: str) -> None:
        if state not in (KazooState.CONNECTED, KazooState.SUSPENDED):
            unanswered = self._end()
            if unanswered is not None:
                threading.Thread(target=self._lose, args=(unanswered,), name="zookeeper-lost", daemon=True).start()
            return
        connected = state == KazooState.CONNECTED
        with self._lock:
            if self._ended:  # kazoo goes on until it has stopped
                return
            if connected:
                self._overdue.back()
            else:
                self._overdue.suspended()
        if connected:
            self._pump()
        self._tell(SessionState.CONNECTED if connected else SessionState.SUSPENDED)

    def _failed(self, error: Exception) -> None:
        """A thread of kazoo's died of an error: kazoo does nothing more."""
        log.error("the session with ZooKeeper at %s ends by an error of its client: %r", self.address, error)
        self._state_changed(KazooState.LOST)

    def _serves_others(self) -> bool:
        """Whether a server takes a client that has seen nothing yet."""
        try:
            another = Session.connect(
                self.address,
                "",
                session_timeout_ms=self._session_timeout_ms,
                request_timeout_ms=self._session_timeout_ms,
                login=self.login,
            )
        except ReplicationError:
            return False
        another.close()
        return True

    def _refused(self) -> None:
        self._why_ended = ", since servers take others and not it: ZooKeeper may be as of an earlier time"
        log.error("session %#x with ZooKeeper at %s ends here%s", self.id, self.address, self._why_ended)
        self._state_changed(KazooState.LOST)

    def _end(self) -> list[_Request] | None:
        """End the session. Returns the requests that the caller has to answer; None if it had ended before."""
        with self._lock:
            if self._ended:
                return None
            self._ended = True
            self._overdue.back()
            unanswered = [*self._in_flight, *self._waiting]
            self._in_flight.clear()
            self._waiting.clear()
            return unanswered

    def _lose(self, unanswered: list[_Request]) -> None:
        self._tell(SessionState.LOST)
        self._bury(unanswered)

    def _bury(self, unanswered: list[_Request]) -> None:
        for request in unanswered:
            request.then(self._session_lost())
        _stop(self._client)  # otherwise kazoo would open a new session by itself

    def _tell(self, state: SessionState) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(state)


def _stop(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except Exception as error:  # noqa: BLE001 (kazoo raises a bare Exception when its thread is late)
        log.debug("kazoo did not stop cleanly: %r", error)


def _acls_of(answer: tuple[list[ACL], Any]) -> list[ACL]:
    acls, _stat = answer
    return acls


def _with_attempts(address: str) -> str:
    servers = address.split(",")
    return ",".join(servers * -(-CONNECT_SHARES_MIN // len(servers)))


def _of_tls(login: Login) -> str:
    return "" if login.tls else ". If it serves TLS alone, as an embedded one with security does, set zookeeper.tls.…"


def _put_at(answers: queue.SimpleQueue[tuple[int, Answer]], place: int, outcome: Answer) -> None:
    answers.put((place, outcome))


def _synced(_path: str) -> None:
    return None
