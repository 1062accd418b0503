"""ZooKeeper for stories of one controller, which is answered at once.

The tree, its codecs, and what claims, loads and writes are those of production. Where answers are late or lost,
sim.world.zookeeper takes its place.

It counts multi()s of the controller, and can let it die after any number of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.core.claims.campaigning import Campaigning
from spark_replication.core.claims.claim import Attempts, Claim, ClaimSend
from spark_replication.core.claims.registering import Registering
from spark_replication.core.controller.cluster import LoadedCluster
from spark_replication.core.controller.events import BrokersRead
from spark_replication.core.law.brokers import Brokers
from spark_replication.core.law.writes import (
    Group,
    GroupAnswer,
    IsrAnswer,
    IsrWrite,
    PartitionWrite,
    TopicWrite,
)
from spark_replication.model import (
    ABSENT,
    BrokerId,
    ControllerInfo,
    PartitionState,
    Registration,
    TopicConfig,
    TopicPartition,
    TopicState,
    encode,
)
from spark_replication.sim.world.stored import Stored
from spark_replication.zk import paths
from spark_replication.zk.broker.isr_writes import IsrWrites
from spark_replication.zk.claims import operation_of, path_of, seen
from spark_replication.zk.controller.batches import MULTI_OPERATIONS_MAX
from spark_replication.zk.controller.committing import Committing
from spark_replication.zk.controller.loading import load
from spark_replication.zk.controller.write_kinds import codec_of
from spark_replication.zk.operations import EXISTS, Committed, Delete, Operation, Rejected, SetData
from spark_replication.zk.reading import Reading

CLUSTER_ID = "scenario"

Claimed = TypeVar("Claimed")


class ControllerDied(Exception):
    """The simulated controller's process ended here."""


class ZooKeeperAtOnce(Stored):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        #: The multi()s that controllers have sent.
        self.round_trips = 0
        #: How many more the controller lives for.
        self.dies_after: int | None = None

    # What controllers do

    def load(self) -> LoadedCluster:
        """Win the next controller epoch (C1), whoever commands, and read what its winner reads."""
        won = self._claim(Campaigning(ControllerInfo(id="controller", host="host", port=1, epoch=0)))
        assert won is not None, "nobody else commands"
        loaded, _ = load(self.tree, self.settings, CLUSTER_ID, won.info.epoch)
        return loaded

    def session(self, *, operations_max: int = MULTI_OPERATIONS_MAX) -> ControllerSession:
        """The session of the controller that has won last. operations_max: of groups that share a multi()."""
        return ControllerSession(self, operations_max)

    # What brokers do

    @property
    def brokers(self) -> Brokers:
        return Brokers.of(self.registered, self.broker_epochs)

    def brokers_read(self) -> BrokersRead:
        return Reading(self.tree).brokers()

    def register(self, broker: BrokerId, *, clean: bool, rack: str | None) -> None:
        """clean: it proves that it has lost nothing since it was last registered."""
        before = self.broker_epochs.get(broker)
        wanted = Registration(
            host=f"host-{broker}",
            port=1,
            replication_port=2,
            epoch=0,
            incarnation=f"{broker}-{0 if before is None else before.epoch + 1}",
            rack=rack,
            continues=before.epoch if clean and before is not None else None,
        )
        self._claim(Registering(broker, wanted))

    def remove_registration(self, broker: BrokerId) -> bool:
        """False if there is none."""
        return isinstance(self.multi([Delete(paths.broker_id(broker), EXISTS)]), Committed)

    def shut_down(self, broker: BrokerId) -> None:
        """Mark the broker as shutting down: it is not to be elected, or to join an ISR (L2)."""
        marked = replace(self.registered[broker], shutting_down=True)
        self.multi([SetData(paths.broker_id(broker), encode(marked), EXISTS)])

    def change_isr(self, write: IsrWrite) -> IsrAnswer:
        answers: list[IsrAnswer] = []
        requests = _Requests(self, self.multi)
        IsrWrites(requests, controlled=lambda: True).change(write, answers.append)
        requests.answer()
        (answer,) = answers
        return answer

    # What was stored before the story begins, and what people write

    def place(
        self,
        topic: str,
        state: TopicState,
        states: dict[int, tuple[PartitionState, int]],
        config: TopicConfig | None = None,
        version: int = 0,
    ) -> None:
        """Store a topic that is not there. states: by partition, with their versions."""
        writes: list[tuple[TopicWrite | PartitionWrite, int]] = [
            (TopicWrite(topic=topic, state=state, config=config, version=ABSENT), version)
        ]
        for number, (found, at) in states.items():
            partition = TopicPartition(topic, number)
            writes.append((PartitionWrite(partition=partition, state=found, version=ABSENT), at))
        operations: list[Operation] = []
        for write, at in writes:
            codec = codec_of(write)
            operations += codec.operations(write, {})
            operations += [SetData(codec.path(write), encode(write.state), EXISTS)] * at
        assert isinstance(self.multi(operations), Committed), topic

    def put(self, path: str, data: bytes) -> None:
        """Write a node that is there, as a person does, or a leader whose story is told elsewhere."""
        assert isinstance(self.multi([SetData(path, data, EXISTS)]), Committed), path

    def _claim(self, wanted: Claim[Claimed]) -> Claimed:
        nodes = {place: seen(self.tree.read(path_of(place)), place, session=0) for place in wanted.reads}
        decision = Attempts(wanted).after_reading(nodes)
        assert isinstance(decision, ClaimSend), decision
        assert isinstance(self.multi([operation_of(each) for each in decision.operations]), Committed), wanted
        claimed: Claimed = decision.claimed
        return claimed


class ControllerSession:
    """ports.ControllerStore, as the holder of one controller epoch."""

    def __init__(self, store: ZooKeeperAtOnce, operations_max: int) -> None:
        self._store = store
        self._requests = _Requests(store, self._multi)
        epoch = store.tree.read(paths.CONTROLLER_EPOCH)
        assert epoch is not None, "a controller has won"
        self._committing = Committing(
            self._requests, epoch.version, lambda _reason: None, lambda _unreadable: None, operations_max
        )

    def commit(self, groups: Sequence[Group], then: Callable[[list[GroupAnswer]], None]) -> None:
        self._committing.commit(groups, then)
        self._requests.answer()

    def _multi(self, operations: Sequence[Operation]) -> Committed | Rejected:
        store = self._store
        self._die_if_due()
        store.round_trips += 1
        outcome = store.multi(operations)
        if store.dies_after is not None:
            store.dies_after -= 1
        self._die_if_due()
        return outcome

    def _die_if_due(self) -> None:
        if self._store.dies_after == 0:
            raise ControllerDied


class _Requests:
    """CommitRequests and IsrRequests: each is answered once its sender waits."""

    address = "the ZooKeeper of this story"
    root_bytes = 0

    def __init__(self, store: Stored, multi: Callable[[Sequence[Operation]], Committed | Rejected]) -> None:
        self._store = store
        self._multi = multi
        self._asked: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._answers = False

    def commit(self, operations: Sequence[Operation], then: Callable[[Any], None]) -> None:
        self._asked.append((lambda: self._multi(operations), then))

    def read(self, path: str, then: Callable[[Any], None]) -> None:
        self._asked.append((lambda: self._store.tree.read(path), then))

    def stat(self, path: str, then: Callable[[Any], None]) -> None:
        self.read(path, then)

    def read_some(self, paths: Sequence[str], then: Callable[[Any], None]) -> None:
        self._asked.append((lambda: self._store.tree.read_each(paths), then))

    def children(self, path: str, then: Callable[[Any], None]) -> None:
        self._asked.append((lambda: self._store.tree.children(path), then))

    def answer(self) -> None:
        """Answer until nothing is asked any more. Whoever is answered may ask more, which is answered then."""
        if self._answers:
            return
        self._answers = True
        try:
            while self._asked:
                operate, then = self._asked.popleft()
                then(operate())
        finally:
            self._answers = False
