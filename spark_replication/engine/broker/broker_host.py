"""A broker's life, from the lock on its directory to the proof of its end (B1, B2, B3).

`BrokerHost.doing` is the present step. Its end is an event, and so is whatever happens meanwhile.

| doing                     | event                       | then       | why                                          |
| ------------------------- | --------------------------- | ---------- | -------------------------------------------- |
| RECOVER                   | Recovered, with a proof     | COMPARE    | a log that has lost something proves nothing |
| RECOVER                   | Recovered, without a proof  | REGISTER   |                                              |
| COMPARE                   | Compared: something is lost | DROP_PROOF |                                              |
| COMPARE                   | Compared: nothing is lost   | REGISTER   | it continues the epoch of the proof          |
| DROP_PROOF                | Done                        | REGISTER   | it continues no epoch                        |
| REGISTER                  | Registered                  | RECORD     | the proofs in its directory are over         |
| RECORD                    | Done                        | READ       | in the session that has registered           |
| READ                      | Done                        | SERVE      |                                              |
| RECORD, READ, SERVE       | Gone: its present epoch     | RESIGN     | what it led may be another's now (B2)        |
| RESIGN                    | Done                        | REGISTER   | it continues the epoch that is gone          |
| RECOVER to READ           | Failed, never registered    | FAIL       | its guardian starts the next process         |
| REGISTER, RECORD, READ    | Failed, but may succeed     | REST       | nobody else would register it                |
| REST                      | Done                        | REGISTER   |                                              |
| SERVE                     | StopAsked                   | LOOK       |                                              |
| others of RECOVER to REST | StopAsked                   | CLOSE      | it leads nothing that could be moved         |
| LOOK                      | Looked: others may lead     | MARK       | nobody elects this broker any longer (L2)    |
| LOOK, after MARK          | Looked: they do not yet     | PAUSE      |                                              |
| LOOK                      | Looked: else, or too late   | CLOSE      |                                              |
| MARK, PAUSE               | Done                        | LOOK       |                                              |
| MARK                      | Failed                      | CLOSE      | it stops without handing over                |
| LOOK, MARK, PAUSE         | Gone: its present epoch     | CLOSE      |                                              |
| SERVE, LOOK, MARK, PAUSE  | StopAsked, with all brokers | CLOSE      | nobody will be there to lead                 |
| CLOSE                     | Closed                      | LEAVE      | the proof of a clean stop comes last (B3)    |
| LEAVE                     | Done                        | END        |                                              |
| any                       | Failed, and no row has it   | FAIL       |                                              |

An event that no row has comes too late, and is ignored.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from spark_replication.config import Settings
from spark_replication.errors import ReplicationError

REST_MS = 100
REST_MS_MAX = 2_000
PAUSE_MS = 20


class Do(Enum):
    #: Recover the logs. What the directory proves of the last life is read first: recovery may have to drop the proof.
    RECOVER = "recover"
    #: Compare what was recovered with what is assigned to this broker.
    COMPARE = "compare"
    #: Drop the proof of a life that has lost data. If the disk keeps it, its epoch is over after the registration.
    DROP_PROOF = "drop proof"
    #: Register as a life that `continues` an epoch; in a new session, if the last one was lost.
    REGISTER = "register"
    #: Write the start record, remove the proof of a clean stop, watch this registration, follow under this epoch.
    RECORD = "record"
    #: Read everything from ZooKeeper, and start what is assigned.
    READ = "read"
    #: Serve until something happens.
    SERVE = "serve"
    #: Stop leading and following.
    RESIGN = "resign"
    #: Wait for `rest_ms`.
    REST = "rest"
    #: Look whether others can lead in this broker's place.
    LOOK = "look"
    #: Mark the registration: this broker is shutting down.
    MARK = "mark"
    #: Wait for PAUSE_MS.
    PAUSE = "pause"
    #: Stop serving, flush everything, end the session.
    CLOSE = "close"
    #: Leave the directory, with `proof` written there.
    LEAVE = "leave"
    END = "end"
    #: End with `error`.
    FAIL = "fail"


class StepDone(Struct, frozen=True):
    """The step has succeeded."""


class LogsRecovered(Struct, frozen=True):
    #: The epoch whose records are all here, by what the directory proves; None if it proves nothing.
    proof: int | None


class Compared(Struct, frozen=True):
    #: Something is assigned that the broker had, and has no longer.
    is_lost: bool


class HasRegistered(Struct, frozen=True):
    epoch: int
    clean_since: int


class DirectoryLookedAt(Struct, frozen=True):
    #: This broker leads a partition that another could lead.
    waits: bool
    has_controller: bool
    #: To ZooKeeper.
    connected: bool
    now_ms: int


class Closed(Struct, frozen=True):
    #: All that this life has written is on the disk.
    is_flushed: bool


class StepFailed(Struct, frozen=True):
    """The step has failed."""

    error: ReplicationError


class RegistrationGone(Struct, frozen=True):
    """The registration of this epoch is over: its node or its session is gone, or the proof that names it is false."""

    epoch: int


class StopAsked(Struct, frozen=True):
    why: str
    #: All brokers stop.
    with_all: bool = False


Event = (
    StepDone
    | LogsRecovered
    | Compared
    | HasRegistered
    | DirectoryLookedAt
    | Closed
    | StepFailed
    | RegistrationGone
    | StopAsked
)

_AFTER_DONE = {
    Do.DROP_PROOF: Do.REGISTER,
    Do.RECORD: Do.READ,
    Do.READ: Do.SERVE,
    Do.RESIGN: Do.REGISTER,
    Do.REST: Do.REGISTER,
    Do.MARK: Do.LOOK,
    Do.PAUSE: Do.LOOK,
    Do.LEAVE: Do.END,
}
_AFTER_GONE = {
    **dict.fromkeys((Do.RECORD, Do.READ, Do.SERVE), Do.RESIGN),
    **dict.fromkeys((Do.LOOK, Do.MARK, Do.PAUSE), Do.CLOSE),
}
_AFTER_STOP_ASKED = {
    Do.SERVE: Do.LOOK,
    **dict.fromkeys(
        (Do.RECOVER, Do.COMPARE, Do.DROP_PROOF, Do.REGISTER, Do.RECORD, Do.READ, Do.RESIGN, Do.REST), Do.CLOSE
    ),
}
_AFTER_STOP_OF_ALL = {
    **_AFTER_STOP_ASKED,
    **dict.fromkeys((Do.SERVE, Do.LOOK, Do.MARK, Do.PAUSE), Do.CLOSE),
}
_REPEATED = (Do.REGISTER, Do.RECORD, Do.READ)


class BrokerHost:
    def __init__(self, settings: Settings) -> None:
        self.doing = Do.RECOVER
        #: How many steps have begun: a report of an earlier step can be told by it.
        self.steps = 1
        #: The last registration; None before the first.
        self.registered: HasRegistered | None = None
        self.rest_ms = 0
        self.error: ReplicationError | None = None
        self.proof: int | None = None
        self._hand_over_ms = settings.controlled_shutdown_timeout_ms
        self._hand_over_until_ms: int | None = None
        self._is_marked = False

    @property
    def epoch(self) -> int | None:
        return None if self.registered is None else self.registered.epoch

    @property
    def wanted_to_hand_over(self) -> bool:
        return self._hand_over_until_ms is not None

    @property
    def continues(self) -> int | None:
        """The epoch whose records are all here; None if nothing proves that."""
        return self.proof if self.registered is None else self.registered.epoch

    def after(self, event: Event) -> bool:
        """Take the event in. True: `doing` is another step now."""
        doing = self._after(event)
        if doing is None:
            return False
        self.doing = doing
        self.steps += 1
        return True

    def _after(self, event: Event) -> Do | None:
        match event:
            case StepDone():
                return self._after_done()
            case StepFailed(error=error):
                return self._after_failure(error)
            case RegistrationGone(epoch=epoch):
                return _AFTER_GONE.get(self.doing) if epoch == self.epoch else None
            case StopAsked(with_all=with_all):
                return (_AFTER_STOP_OF_ALL if with_all else _AFTER_STOP_ASKED).get(self.doing)
            case _:
                return self._after_finding(event)

    def _after_finding(self, event: LogsRecovered | Compared | HasRegistered | DirectoryLookedAt | Closed) -> Do | None:
        match self.doing, event:
            case Do.RECOVER, LogsRecovered(proof=proof):
                self.proof = proof
                return Do.REGISTER if proof is None else Do.COMPARE
            case Do.COMPARE, Compared(is_lost=False):
                return Do.REGISTER
            case Do.COMPARE, Compared():
                self.proof = None
                return Do.DROP_PROOF
            case Do.REGISTER, HasRegistered():
                self.registered = event
                return Do.RECORD
            case Do.LOOK, DirectoryLookedAt():
                return self._after_look(event)
            case Do.CLOSE, Closed(is_flushed=is_flushed):
                self.proof = self.epoch if is_flushed else None
                return Do.LEAVE
        return None

    def _after_done(self) -> Do | None:
        if self.doing is Do.READ:
            self.rest_ms = 0
        return _AFTER_DONE.get(self.doing)

    def _after_failure(self, error: ReplicationError) -> Do:
        self.error = error
        if self.doing in _REPEATED and self.registered is not None and error.retriable:
            self.rest_ms = min(REST_MS_MAX, 2 * self.rest_ms) or REST_MS
            return Do.REST
        return Do.CLOSE if self.doing is Do.MARK else Do.FAIL

    def _after_look(self, looked: DirectoryLookedAt) -> Do:
        """Hand over for as long as there are others to lead, a controller, and time."""
        if self._hand_over_until_ms is None:
            self._hand_over_until_ms = looked.now_ms + self._hand_over_ms
        if not looked.has_controller:
            return Do.CLOSE
        if not self._is_marked:
            self._is_marked = True
            return Do.MARK if looked.connected else Do.CLOSE
        return Do.PAUSE if looked.waits and looked.now_ms < self._hand_over_until_ms else Do.CLOSE
