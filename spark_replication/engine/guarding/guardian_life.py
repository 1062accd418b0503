"""A guardian of one broker, from the look at its directory to the guardian's end (H1, H4, H6).

`GuardianLife.doing` is the present step, and each event is its end.

| doing  | event                                             | then   | why                                            |
| ------ | ------------------------------------------------- | ------ | ---------------------------------------------- |
| LOOK   | nobody lives there                                | LAUNCH |                                                |
| LOOK   | a process lives there, and says where it serves   | TAKE   | a live broker is adopted                       |
| LOOK   | it does not say so yet                            | LOOK   | after POLL_S: it is starting, or stopping      |
| LOOK   | it has not for START_TIMEOUT_S                    | PAUSE  |                                                |
| TAKE   | our broker has taken this lease                   | WATCH  |                                                |
| TAKE   | another has, or nobody answers                    | LOOK   | the file may be of a life before this one      |
| TAKE   | a later lease, another cluster, a wrong proof     | FAIL   | whoever has the broker now guards it           |
| LAUNCH | the process has begun                             | AWAIT  |                                                |
| AWAIT  | it says where it serves                           | WATCH  |                                                |
| AWAIT  | it says nothing yet                               | AWAIT  | after POLL_S                                   |
| AWAIT  | it has not for START_TIMEOUT_S                    | KILL   | else it could come up later, with no guardian  |
| AWAIT  | it has ended: a later guardian holds the lease    | FAIL   |                                                |
| AWAIT  | it has ended: another lives in the directory      | LOOK   | that one is adopted; if it ends, this is a     |
|        |                                                   |        | start that failed                              |
| AWAIT  | it has ended otherwise                            | PAUSE  |                                                |
| KILL   | it has ended                                      | PAUSE  |                                                |
| WATCH  | the broker has ended                              | REPORT | whether or not the guardian is to stop         |
| WATCH  | it lives, and the guardian is to stop             | END    | the broker serves on under its lease           |
| WATCH  | it lives                                          | RENEW  |                                                |
| RENEW  | done, or nobody answers                           | WATCH  |                                                |
| RENEW  | a later lease                                     | FAIL   |                                                |
| REPORT | done, or nobody answers                           | PAUSE  | ZooKeeper's session tells, too                 |
| REPORT | likewise, of a guardian that retires              | END    | its successor restarts the broker              |
| PAUSE  | over                                              | LOOK   | or END, if the guardian is to stop             |
| any    | a start has failed, or the disk refuses           | PAUSE  | one broker must not end the stage of all (B4)  |
| any    | any other error, and no row has it                | FAIL   |                                                |
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Generic, Protocol, TypeVar

from spark_replication.errors import (
    AuthenticationFailed,
    ReplicationError,
    StaleLease,
    StartFailed,
    StorageFailed,
    WrongCluster,
)
from spark_replication.messages.guarding import BrokerDied
from spark_replication.model import BrokerId

START_TIMEOUT_S = 60.0
POLL_S = 0.02  # while waiting for a file that another process writes
RESTART_S_MIN, RESTART_S_MAX = 0.1, 10.0
STEADY_S = 60.0  # a broker that lived this long is restarted without back-off

# Exit codes of a broker's process, for its guardian, and for a person who started one by hand.
STOPPED = 0
FAILED = 1
WRONG_USAGE = 2  # wrong arguments or settings, or another cluster's directory
IN_USE = 3  # another process lives in the directory
TAKEN_OVER = 4  # a later guardian holds the lease


class GuardianDoes(Enum):
    #: Wait for `wait_s`, then look whether a process lives in the directory, and where it serves.
    LOOK = "look"
    #: Have the broker at `found` take this guardian's lease.
    TAKE = "take"
    #: Start a process in the directory.
    LAUNCH = "launch"
    #: Wait for `wait_s`, then look whether the process that was started serves, or has ended.
    AWAIT = "await"
    #: End the process that was started.
    KILL = "kill"
    #: Watch the broker at `found` until it ends, or it is time to renew its lease, or the guardian is to stop.
    WATCH = "watch"
    #: Renew the lease of the broker at `found`.
    RENEW = "renew"
    #: Tell the controller `died`.
    REPORT = "report"
    #: Wait for `wait_s`, or until the guardian is to stop.
    PAUSE = "pause"
    END = "end"
    #: End with `error`.
    FAIL = "fail"


class ServingFile(Protocol):
    """What a broker's process writes down of itself once it serves."""

    @property
    def pid(self) -> int: ...

    @property
    def incarnation(self) -> str: ...


File = TypeVar("File", bound=ServingFile)
Does = GuardianDoes

_NO_USE = (StaleLease, WrongCluster, AuthenticationFailed)  # nothing that this guardian could do again


class GuardianLife(Generic[File]):
    def __init__(self, broker_id: BrokerId, where: str, now_s: Callable[[], float]) -> None:
        """where: the broker's directory, for messages."""
        self.broker_id = broker_id
        self._where = where
        self._now_s = now_s
        self.doing = Does.LOOK
        #: How long LOOK, AWAIT and PAUSE wait.
        self.wait_s = 0.0
        #: Where the broker serves, or served until its end; None before the guardian has found one.
        self.found: File | None = None
        #: Why the last start failed, or why the guardian fails.
        self.error: ReplicationError | None = None
        self.restarts = 0
        #: Whether the broker lived before this guardian.
        self.adopted = False
        #: Why the broker does not start; empty once it has started.
        self.trouble = ""
        self.is_stopping = self._retiring = False
        self._has_launched = False
        self._began_s = self._timeout_s = self._now_s()
        self._delay_s = RESTART_S_MIN
        self._pid = 0
        #: What was in the directory before the process that was started: an earlier life's, whose pid may come again.
        self._before: File | None = None
        #: Why the process that was started has ended, though another may live there; None if none was.
        self._gave_way: StartFailed | None = None

    @property
    def died(self) -> BrokerDied:
        assert self.found is not None, "it has served"
        return BrokerDied(broker_id=self.broker_id, incarnation=self.found.incarnation)

    def begin(self) -> None:
        """Adopt the broker if it lives, else start it. Also of one that is guarded already."""
        self._begin_start()
        self._delay_s = RESTART_S_MIN
        if self.is_stopping:
            self.doing = Does.END

    # At any time, from any thread: the present step goes on.

    def stop(self) -> None:
        """Stop guarding, after the present start. The broker serves on under its lease."""
        self.is_stopping = True

    def retire(self) -> None:
        """Report the broker's next end, and leave the restart to a successor."""
        self._retiring = True

    # Ends of steps

    def looked(self, *, alive: bool, file: File | None) -> None:
        """alive: whether a process lives in the directory."""
        if not alive:
            if self._gave_way is not None:
                self.failed(self._gave_way)
            else:
                self.doing = Does.LAUNCH
        elif self._now_s() >= self._timeout_s:
            self.failed(StartFailed(f"a broker lives in {self._where} but does not answer: see its log, or end it"))
        elif file is None:
            self._again(Does.LOOK)
        else:
            self.found, self.doing = file, Does.TAKE

    def taken(self, broker_id: BrokerId) -> None:
        """The broker at `found`, which is this one, has taken the lease."""
        if broker_id != self.broker_id:
            self._again(Does.LOOK)
        else:
            self._serves(adopted=not self._has_launched)

    def launched(self, pid: int, before: File | None) -> None:
        """before: the file that was there."""
        self._has_launched = True
        self._pid, self._before = pid, before
        self._timeout_s = self._now_s() + START_TIMEOUT_S
        self.doing, self.wait_s = Does.AWAIT, 0.0

    def awaited(self, file: File | None) -> None:
        """file: what is in the directory of the process that was started. It counts even if that has ended since: the
        broker may have registered, and its end is to be reported."""
        if file is not None and file.pid == self._pid and file != self._before:
            self.found = file
            self._serves(adopted=False)
        elif self._now_s() >= self._timeout_s:
            self.doing = Does.KILL
        else:
            self._again(Does.AWAIT)

    def child_ended(self, code: int, last_words: str) -> None:
        """The process that was started has ended, with this exit code."""
        name = f"broker {self.broker_id}"
        if self.doing is Does.KILL:
            self.failed(StartFailed(f"{name} did not serve within {START_TIMEOUT_S} s: {last_words}"))
        elif code == TAKEN_OVER:
            self.failed(StaleLease(last_words))
        else:
            ended = StartFailed(f"{name} did not start (exit {code}): {last_words}")
            if code == IN_USE:
                self._gave_way = ended
                self._look_within_timeout()
            else:
                self.failed(ended)

    def watched(self, *, ended: bool) -> None:
        if ended:
            self.restarts += 1
            self.doing = Does.REPORT
        else:
            self.doing = Does.END if self.is_stopping else Does.RENEW

    def renewed(self) -> None:
        self.doing = Does.WATCH

    def reported(self) -> None:
        if self._retiring:
            self.doing = Does.END
        else:
            self._pause()

    def paused(self) -> None:
        if self.is_stopping:
            self.doing = Does.END
        else:
            self._begin_start()

    def failed(self, error: ReplicationError) -> None:
        """The present step has failed."""
        if self.doing is Does.RENEW and not isinstance(error, StaleLease):
            self.doing = Does.WATCH
        elif self.doing is Does.TAKE and not isinstance(error, _NO_USE):
            self._again(Does.LOOK)
        elif self.doing is Does.REPORT:
            self.reported()
        elif isinstance(error, StartFailed | StorageFailed):
            self.error, self.trouble = error, error.message
            self._pause()
        else:
            self.error, self.doing = error, Does.FAIL

    def _begin_start(self) -> None:
        self._began_s = self._now_s()
        self.error = self._gave_way = None
        self._look_within_timeout()

    def _look_within_timeout(self) -> None:
        self._timeout_s = self._now_s() + START_TIMEOUT_S
        self.doing, self.wait_s = Does.LOOK, 0.0

    def _again(self, doing: GuardianDoes) -> None:
        self.doing, self.wait_s = doing, POLL_S

    def _serves(self, *, adopted: bool) -> None:
        self.adopted, self.trouble = adopted, ""
        self.doing = Does.WATCH

    def _pause(self) -> None:
        steady = self._now_s() - self._began_s > STEADY_S
        self._delay_s = RESTART_S_MIN if steady else min(self._delay_s * 2, RESTART_S_MAX)
        self.doing, self.wait_s = Does.PAUSE, self._delay_s
