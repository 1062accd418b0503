"""The people of the simulated cluster who change ZooKeeper by hand: they spoil, remove and add what is not theirs.

What they have spoilt, and what nobody can read, goes again. What they have removed a controller makes again, but for a
folder, which whoever removed it puts back.
"""

from __future__ import annotations

from spark_replication.messages.requests import DeleteTopic
from spark_replication.model import TopicPartition
from spark_replication.sim.cast.cluster import TOPIC, SimulatedCluster
from spark_replication.sim.cast.operators import OTHER
from spark_replication.sim.faults import Fault
from spark_replication.sim.world.stored import GARBAGE
from spark_replication.zk import paths
from spark_replication.zk.operations import EXISTS, Create, Delete, Operation

# What cannot be read as a request, and where it lies.
NO_REQUESTS = (paths.PREFERRED_ELECTION, f"{paths.REASSIGNED}/{TOPIC}/0", f"{paths.ADDED}/nobody knows it/0")


class Meddlers:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        #: What is to go, or to be there again, once everything is whole.
        self._left: set[str] = set()

    def garbage(self, fault: Fault) -> bool:
        """Write what nobody can read into a leaderAndISR or a topic."""
        partition = self._stored(fault)
        if partition is None:
            return False
        if fault.pick % 3:
            self._cluster.store.spoil(partition)
        else:
            self._cluster.store.spoil(topics=(partition.topic,))
        return True

    def removed_state(self, fault: Fault) -> bool:
        """Remove a leaderAndISR, as a person does who takes that for a cure. The next controller finds out."""
        store = self._cluster.store
        partition = self._stored(fault)
        if partition is None or store.unreadable.hides(partition):
            return False
        store.remove(partition)
        self._cluster.checkers.removed(partition, store.topics[partition.topic].state.topic_id)
        return True

    def stray_nodes(self, fault: Fault) -> bool:
        """Make nodes below what is to go: a topic, or a request that is carried out."""
        store = self._cluster.store
        if OTHER in store.topics and OTHER not in store.deleting:
            below = (paths.topic(OTHER), paths.topic_config(OTHER), paths.partition(TopicPartition(OTHER, 0)))
            chosen = below[fault.pick % len(below)]
            if store.tree.read(chosen) is None or store.tree.read(f"{chosen}/notes") is not None:
                return False
            self._write(*_notes(chosen))
            self._cluster.ask(DeleteTopic(topic=OTHER))
            return True
        if store.tree.read(paths.PREFERRED_ELECTION) is not None:
            return False
        self._write(Create(paths.PREFERRED_ELECTION), *_notes(paths.PREFERRED_ELECTION))
        return True

    def lost_folder(self, fault: Fault) -> bool:
        """Remove the folder by which leaders tell what they have changed, or write there what nobody can read."""
        tree = self._cluster.store.tree
        names = tree.children(paths.ISR_CHANGES)
        if names is None:
            return False
        if fault.pick % 2:
            self._write(*(Delete(paths.isr_change(name), EXISTS) for name in names), Delete(paths.ISR_CHANGES, EXISTS))
            self._left.add(paths.ISR_CHANGES)
        else:
            note = paths.isr_change(f"note {fault.pick}")
            if tree.read(note) is None:
                self._write(Create(note, GARBAGE))
            self._left.add(note)
        return True

    def no_request(self, fault: Fault) -> bool:
        """Write below /admin what cannot be read as a request."""
        tree, path = self._cluster.store.tree, NO_REQUESTS[fault.pick % len(NO_REQUESTS)]
        if tree.read(path) is not None:
            return False
        folder = path.rpartition("/")[0]
        self._write(*(() if tree.read(folder) is not None else (Create(folder),)), Create(path, GARBAGE))
        self._left.add(path)
        return True

    def mend(self) -> None:
        """Put right what no controller does."""
        self._cluster.store.mend()
        left, self._left = sorted(self._left), set()
        for path in left:
            node = self._cluster.store.tree.read(path)
            if path == paths.ISR_CHANGES:
                self._write(*(() if node is not None else (Create(path),)))
            elif node is not None and node.data == GARBAGE:
                self._write(Delete(path, EXISTS))

    def _write(self, *operations: Operation) -> None:
        if operations:
            self._cluster.zookeeper.multi(operations)

    def _stored(self, fault: Fault) -> TopicPartition | None:
        store = self._cluster.store
        found = [p for p in self._cluster.partitions() if p in store.partitions and p.topic not in store.deleting]
        return found[fault.pick % len(found)] if found else None


def _notes(path: str) -> tuple[Create, ...]:
    return Create(f"{path}/notes"), Create(f"{path}/notes/old"), Create(f"{path}/notes/older")
