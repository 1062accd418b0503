"""The controlled stop of a broker by its guardian: whom the guardian asks, signals, or leaves alone (B3, H5, H6).

`BrokerStop.doing` is the present step, and each event is its end. The first is ASK of a broker whose process is seen
from here, else TAKE: its address may be another broker's by now.

| doing     | event                                    | then      | why                                         |
| --------- | ---------------------------------------- | --------- | ------------------------------------------- |
| TAKE      | our broker has taken this lease          | ASK       |                                             |
| TAKE      | another has, or nobody answers           | END       | it gets no signal: its pid is somebody      |
|           |                                          |           | else's here                                 |
| ASK       | it has heard                             | WAIT      | as long as its flush may take, and more     |
| ASK       | nobody answers, and it is seen from here | HOLDER    |                                             |
| ASK       | nobody answers, and it is not            | END       |                                             |
| TAKE, ASK | a later lease                            | END       | it is another guardian's                    |
| HOLDER    | this lease, or an earlier one            | TERMINATE | or KILL, once it had its time               |
| HOLDER    | a later one, or nobody can say           | END       | a signal needs the lease as any order does  |
| TERMINATE | done                                     | WAIT      | as long as its hand-over may take, and more |
| WAIT      | it has ended                             | END       |                                             |
| WAIT      | it has not, and is seen from here        | HOLDER    | somebody may have taken over meanwhile      |
| WAIT      | it has not, and is not                   | END       |                                             |
| KILL      | done                                     | WAIT      | the last one                                |
"""

from __future__ import annotations

import logging
from enum import Enum

from spark_replication.engine.guarding.leases import Lease
from spark_replication.errors import NotReady, ReplicationError, StaleLease
from spark_replication.model import BrokerId

log = logging.getLogger(__name__)


class StopDoes(Enum):
    #: Have the broker take this guardian's lease.
    TAKE = "take"
    #: Ask the broker to stop, as all brokers stop.
    ASK = "ask"
    #: Look who holds the broker's lease, by what it has written down.
    HOLDER = "holder"
    TERMINATE = "terminate"
    KILL = "kill"
    #: Wait for `wait_s`, or until the broker has ended.
    WAIT = "wait"
    END = "end"


class BrokerStop:
    def __init__(
        self,
        broker_id: BrokerId,
        lease: Lease,
        *,
        is_seen: bool,
        timeout_s: float,
        flush_s: float,
        hand_over_s: float,
    ) -> None:
        """is_seen: the broker's process is in this guardian's PID namespace, and of the life that its file tells of. A
        signal to one that is not would reach somebody else. timeout_s: after the time that a broker has for what it was
        told: `flush_s` for its logs if it was asked, `hand_over_s` for its leaderships if it got a signal."""
        self._broker_id = broker_id
        self._lease = lease
        self._flush_s = flush_s
        self._hand_over_s = hand_over_s
        self._is_seen = is_seen
        self.doing = StopDoes.ASK if is_seen else StopDoes.TAKE
        self.wait_s = timeout_s
        self._had_its_time = self._is_killed = False

    def taken(self, broker_id: BrokerId) -> None:
        """The broker at that address, which is this one, has taken the lease."""
        if broker_id == self._broker_id:
            self.doing = StopDoes.ASK
        else:
            self.failed(NotReady(f"broker {broker_id} answers where it served"))

    def asked(self) -> None:
        self._wait(self._flush_s)

    def found_holder(self, holder: Lease) -> None:
        if holder > self._lease:
            log.warning(
                "broker %d is left alone: epoch %d, attempt %d has taken over",
                self._broker_id,
                holder.controller_epoch,
                holder.attempt,
            )
            self.doing = StopDoes.END
        else:
            self.doing = StopDoes.KILL if self._had_its_time else StopDoes.TERMINATE

    def signalled(self) -> None:
        self._is_killed = self.doing is StopDoes.KILL
        if self._is_killed:
            log.warning("broker %d was killed", self._broker_id)
        self._wait(0.0 if self._is_killed else self._hand_over_s)

    def waited(self, *, ended: bool) -> None:
        if ended or self._is_killed:
            self.doing = StopDoes.END
            return
        log.warning("broker %d did not stop within %s s", self._broker_id, self.wait_s)
        self._had_its_time = True
        self._look_at_holder()

    def failed(self, error: ReplicationError) -> None:
        """The present step has failed."""
        if self.doing is StopDoes.HOLDER:
            log.error(
                "broker %d is left alone, nobody can say who holds it: %s. End it by hand", self._broker_id, error
            )
            self.doing = StopDoes.END
        elif isinstance(error, StaleLease):
            log.warning("broker %d is not stopped: %s", self._broker_id, error)
            self.doing = StopDoes.END
        else:
            log.warning("broker %d cannot be asked to stop: %s", self._broker_id, error)
            self._look_at_holder()

    def _look_at_holder(self) -> None:
        if self._is_seen:
            self.doing = StopDoes.HOLDER
        else:
            log.error(
                "broker %d is in another PID namespace, or its broker.json is of a life before this one: end it by "
                "hand, if it does not stop",
                self._broker_id,
            )
            self.doing = StopDoes.END

    def _wait(self, longer_s: float) -> None:
        self.wait_s += longer_s
        self.doing = StopDoes.WAIT
