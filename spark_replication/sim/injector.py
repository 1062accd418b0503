"""Makes faults happen, and in the end makes everything whole again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.model import TopicPartition
from spark_replication.sim.cast.broker import BrokerProcess, Host
from spark_replication.sim.cast.cluster import SimulatedCluster
from spark_replication.sim.cast.controllers import Candidate
from spark_replication.sim.cast.groups import GroupMember
from spark_replication.sim.cast.meddlers import Meddlers
from spark_replication.sim.cast.operators import Operators
from spark_replication.sim.faults import Fault
from spark_replication.sim.world.world import Process
from spark_replication.sim.world.zookeeper import Taken

SLOW_MS = (4, 40)
SKEW_MS = 700
STOPPED_WITHIN_MS = 60  # all brokers hear of it
BACK_WITHIN_MS = 60  # all clients of ZooKeeper, once it is
WRITTEN_BACK = (0.0, 0.0, 0.2, 0.5, 1.0)  # the share of a host's files and folders that is on disk as its power goes

LOSE_ANSWERS = ("changes an ISR", "controller writes", "registers", "campaigns", "marks itself as shutting down")

Of = TypeVar("Of")


class Injector:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._operators, self._meddlers = Operators(cluster), Meddlers(cluster)
        self._healed = False
        #: The broker whose disk rots: what every disk has lost, nobody could copy back.
        self._rotting: Host | None = None

    def plan(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self._world.after(fault.at_ms - self._world.now_ms, "fault:", partial(self._happen, fault), about=fault)

    def _happen(self, fault: Fault) -> None:
        action: Callable[[Fault], bool] = getattr(self, f"_{fault.kind}", None) or self._operators.action(fault.kind)
        if action(fault):
            self._world.counts[f"fault_{fault.kind}"] += 1

    def _later(self, delay_ms: int, what: str, action: Callable[[], None]) -> None:
        """Do this later, unless everything is healed by then: healing does it all at once."""
        self._world.after(delay_ms, what, lambda: None if self._healed else action())

    # Whom it hits

    def _living(self, fault: Fault) -> BrokerProcess | None:
        return _picked(self._cluster.living(), fault.pick)

    def _leader(self, fault: Fault) -> BrokerProcess | None:
        partition = self._led(fault)
        if partition is None:
            return None
        leader = self._cluster.store.partitions[partition].state.leader
        return None if leader is None else self._cluster.hosts[leader].process

    def _led(self, fault: Fault) -> TopicPartition | None:
        partitions = self._cluster.store.partitions
        led = [p for p in self._cluster.partitions() if p in partitions and partitions[p].state.leader is not None]
        return _picked(led, fault.pick)

    # Brokers

    def _kill(self, fault: Fault) -> bool:
        return self._killed(self._living(fault), fault.for_ms)

    def _kill_leader(self, fault: Fault) -> bool:
        return self._killed(self._leader(fault), fault.for_ms)

    def _killed(self, process: BrokerProcess | None, down_ms: int) -> bool:
        if process is None:
            return False
        process.ended()
        self._later(down_ms, "starts again", lambda: self._cluster.start_broker(process.broker))
        return True

    def _flapping_leader(self, fault: Fault) -> bool:
        """Kill a leader, and start it again so soon that it leads on in the same leader epoch."""
        return self._killed(self._leader(fault), fault.for_ms)

    def _torn_write(self, fault: Fault) -> bool:
        """Kill a broker in the midst of a change of its disk, such as between bytes and index entry or within one."""
        process = self._living(fault)
        if process is None:
            return False
        process.host.disk.files.dies_in = fault.pick % 4
        broker = process.broker

        def start_again() -> None:
            process.host.disk.files.dies_in = None
            self._cluster.start_broker(broker)

        self._later(fault.for_ms + 200, "starts again", start_again)
        return True

    def _power_loss(self, fault: Fault) -> bool:
        return self._lost_power(self._living(fault), fault.for_ms)

    def _power_loss_leader(self, fault: Fault) -> bool:
        return self._lost_power(self._leader(fault), fault.for_ms)

    def _power_loss_all(self, fault: Fault) -> bool:
        """Cut the power of several hosts at once. They come back one after the other."""
        processes = self._cluster.living()
        for number, process in enumerate(processes):
            if (fault.pick >> number) % 4:
                self._lost_power(process, fault.for_ms * (1 + (fault.pick >> number) % 3))
        return bool(processes)

    def _late_log_info(self, fault: Fault) -> bool:
        """Delay an answer about logs, while its broker loses what it told of. Before that, all brokers lose power, or
        are killed if they trust no page cache, so that they are asked for their logs."""

        def answered(source: str) -> None:
            process = next((process for process in self._cluster.living() if process.name == source), None)
            self._world.after(0, "loses power", lambda: None if self._healed else self._crash_host(process, 5))

        for process in self._cluster.living():
            if self._cluster.settings.recovery_trust_page_cache:
                self._crash_host(process, 10 + fault.pick % 20)
            else:
                self._killed(process, 10 + fault.pick % 20)
                self._cluster.zookeeper.expire(process.session)
        self._cluster.network.hold_next("GetReplicaLogInfo is answered", fault.for_ms, answered)
        return True

    def _crash_host(self, process: BrokerProcess | None, down_ms: int) -> None:
        """Cut a host's power, and end its session at once, so that its next life comes before its late answer."""
        if process is not None:
            self._lost_power(process, down_ms)
            self._cluster.zookeeper.expire(process.session)

    def _lost_power(self, process: BrokerProcess | None, down_ms: int) -> bool:
        if process is None:
            return False
        host = process.host
        process.ended()
        host.boots += 1
        written_back = WRITTEN_BACK[self._world.between(0, len(WRITTEN_BACK) - 1)]
        if written_back:
            host.disk.files.write_back(lambda: self._world.chance(written_back))
        host.disk.files.lose_power(self._world.rng)
        self._cluster.checkers.lost.add(host.broker)
        self._later(down_ms, "boots again", lambda: self._cluster.start_broker(host.broker))
        return True

    def _pause(self, fault: Fault) -> bool:
        process: Process | None = self._living(fault)
        controller = self._cluster.controller()
        if controller is not None and fault.pick % 5 == 0:
            process = controller
        if process is None:
            return False
        self._stop_for(process, fault.for_ms)
        session = process.session if hasattr(process, "session") else None
        if session is not None:
            session.disconnect(fault.for_ms)
        return True

    def _stop_for(self, process: Process, for_ms: int) -> None:
        process.stopped_until_ms = max(process.stopped_until_ms, self._world.now_ms + for_ms)

    def _slow_disk(self, fault: Fault) -> bool:
        process = self._living(fault)
        if process is None:
            return False
        files = process.host.disk.files
        files.slowed = lambda: self._stop_for(process, self._world.between(*SLOW_MS))
        self._later(fault.for_ms, "its disk is fast again", lambda: _set_fast(process.host))
        return True

    def _full_disk(self, fault: Fault) -> bool:
        process = self._living(fault)
        if process is None:
            return False
        process.host.disk.files.full = True

        def empty() -> None:
            """Free space, and restart the broker in half of the cases: it writes again without a restart, too."""
            process.host.disk.files.full = False
            if fault.pick % 2:
                self._killed(process.host.process, 20)
            if process.host.process is None:
                self._cluster.start_broker(process.broker)

        self._later(fault.for_ms, "its disk is emptied", empty)
        return True

    def _failing_sync(self, fault: Fault) -> bool:
        """Fail the syncs of a broker: it can read all that it wrote, but any part may not be on its disk. Then it is
        killed, and starts again."""
        process = self._living(fault)
        if process is None:
            return False
        files, broker = process.host.disk.files, process.broker
        files.failing = self._world.rng

        def repair() -> None:
            files.failing = None
            if not self._killed(process.host.process, 20):
                self._cluster.start_broker(broker)

        self._later(fault.for_ms, "its disk is repaired", repair)
        return True

    def _rot(self, fault: Fault) -> bool:
        """Change a byte that was flushed, in a segment that is closed, on the disk of one broker. Another one has
        flushed the same: what is on one disk alone is gone with it."""
        process = self._living(fault) if self._rotting is None else self._rotting.process
        if process is None:
            return False
        closed = [
            (partition.unguarded, segment)
            for _, partition in sorted(process.loop.replicas.items())
            for segment in partition.unguarded.log.segments()
            if segment.end <= partition.unguarded.log.flushed_end < partition.unguarded.log.log_end
            and self._is_elsewhere(partition.unguarded, segment.end, process)
        ]
        found = _picked(closed, fault.pick)
        if found is None:
            return False
        self._rotting = process.host
        replica, segment = found
        process.host.disk.rot((replica.partition, replica.topic_id), segment.base, fault.pick >> 4)
        return True

    def _is_elsewhere(self, replica: ReplicaLoop, end: int, here: Process) -> bool:
        others = (process for process in self._cluster.living() if process is not here)
        found = (process.loop.replicas.get(replica.partition) for process in others)
        return any(
            each is not None
            and each.topic_id == replica.topic_id
            and min(each.unguarded.log.flushed_end, each.unguarded.log.log_end) >= end
            for each in found
        )

    def _controlled_stop(self, fault: Fault) -> bool:
        process = self._living(fault)
        if process is None:
            return False
        is_off = (fault.pick >> 8) % 4 == 0
        self._ask_to_stop(process, 0, partial(self._stopped, process.host, fault.for_ms, is_off=is_off), with_all=False)
        return True

    def _stop_all(self, fault: Fault) -> bool:
        """Stop all brokers, as the end of a cluster does. They come back one after the other."""
        processes = self._cluster.living()
        for number, process in enumerate(processes):
            down_ms = fault.for_ms * (1 + (fault.pick >> number) % 3)
            then = partial(self._stopped, process.host, down_ms, is_off=fault.pick % 2 == 0)
            self._ask_to_stop(process, self._world.between(0, STOPPED_WITHIN_MS), then, with_all=True)
        return bool(processes)

    def _ask_to_stop(self, process: BrokerProcess, in_ms: int, then: Callable[[], None], *, with_all: bool) -> None:
        # Its own event: the process may be killed as it writes.
        self._world.after(in_ms, "is asked to stop", lambda: process.stop(then, with_all=with_all), on=process)

    def _stopped(self, host: Host, down_ms: int, *, is_off: bool) -> None:
        if is_off and not self._healed:
            self._switch_off(host)
        self._world.after(
            0 if self._healed else down_ms, "starts again", lambda: self._cluster.start_broker(host.broker)
        )

    def _switch_off(self, host: Host) -> None:
        """After a clean stop nothing is lost by that."""
        host.boots += 1
        host.disk.files.lose_power(self._world.rng)
        if host.disk.clean_shutdown is None:
            self._cluster.checkers.lost.add(host.broker)

    def _clock_skew(self, fault: Fault) -> bool:
        process = self._living(fault)
        if process is None:
            return False
        process.skew_ms = fault.pick % (2 * SKEW_MS) - SKEW_MS
        self._later(fault.for_ms, "its clock is set", lambda: setattr(process, "skew_ms", 0))
        return True

    # Writers of tables

    def _pause_writer(self, fault: Fault) -> bool:
        writers = self._cluster.writers
        if writers:
            writer = writers[fault.pick % len(writers)]
            writer.stopped_until_ms = max(writer.stopped_until_ms, self._world.now_ms + fault.for_ms)
        return bool(writers)

    def _tables_away(self, fault: Fault) -> bool:
        self._cluster.tables.unreachable_until_ms = self._world.now_ms + fault.for_ms
        return True

    # Members of consumer groups

    def _member(self, fault: Fault) -> GroupMember | None:
        return _picked(self._cluster.groups.living(), fault.pick)

    def _kill_member(self, fault: Fault) -> bool:
        member = self._member(fault)
        if member is not None:
            member.ended()
            self._cluster.groups.restart(member)
        return member is not None

    def _pause_member(self, fault: Fault) -> bool:
        member = self._member(fault)
        if member is not None:
            self._stop_for(member, fault.for_ms)
        return member is not None

    def _leave_member(self, fault: Fault) -> bool:
        member = self._member(fault)
        if member is not None:
            member.leave()
            self._cluster.groups.restart(member)
        return member is not None

    # Network

    def _message_loss(self, fault: Fault) -> bool:
        network = self._cluster.network
        network.loss = 0.02 + fault.pick % 10 / 50
        self._later(fault.for_ms, "no message is lost any more", lambda: setattr(network, "loss", 0.0))
        return True

    def _delay(self, fault: Fault) -> bool:
        network = self._cluster.network
        network.late = 0.05 + fault.pick % 10 / 30
        self._later(fault.for_ms, "messages come in time again", lambda: setattr(network, "late", 0.0))
        return True

    def _places(self) -> list[str]:
        return [*(f"b{broker}" for broker in self._cluster.hosts), *self._cluster.candidates]

    def _partition(self, fault: Fault) -> bool:
        """Cut one place off from all others, both ways."""
        places = self._places()
        alone = places[fault.pick % len(places)]
        return self._cut(
            {pair for other in places if other != alone for pair in ((alone, other), (other, alone))}, fault
        )

    def _one_way_partition(self, fault: Fault) -> bool:
        places = self._places()
        one, other = places[fault.pick % len(places)], places[(fault.pick >> 4) % len(places)]
        return one != other and self._cut({(one, other)}, fault)

    def _cut_follower(self, fault: Fault) -> bool:
        """Keep the messages of a leader from one follower for long enough that the follower leaves the ISR."""
        leader = self._leader(fault)
        followers = [broker for broker in self._cluster.hosts if leader is not None and broker != leader.broker]
        follower = _picked(followers, fault.pick >> 5)
        if leader is None or follower is None:
            return False
        return self._cut({(leader.name, f"b{follower}")}, fault)

    def _cut(self, pairs: set[tuple[str, str]], fault: Fault) -> bool:
        cut = self._cluster.network.cut
        cut |= pairs
        self._later(fault.for_ms, "the network is whole again", lambda: cut.difference_update(pairs))
        return True

    # ZooKeeper

    def _session_expiry(self, fault: Fault) -> bool:
        process = self._living(fault)
        controller = self._cluster.controller()
        if controller is not None and fault.pick % 4 == 0:
            controller.session.disconnect(self._world.between(1, 40))
            self._cluster.zookeeper.expire(controller.session)
            return True
        if process is None:
            return False
        if fault.pick % 2:
            process.session.disconnect(self._world.between(1, 600))
        self._cluster.zookeeper.expire(process.session)
        return True

    def _disconnection(self, fault: Fault) -> bool:
        process = self._living(fault)
        controller = self._cluster.controller()
        if controller is not None and fault.pick % 4 == 0:
            controller.session.disconnect(fault.for_ms)
        elif process is not None:
            process.session.disconnect(fault.for_ms)
        return process is not None

    def _zookeeper_down(self, fault: Fault) -> bool:
        """Disconnect everybody at once. In half of the cases nobody lets their sessions expire meanwhile."""
        sessions = [process.session for process in self._cluster.living()] + self._cluster.zookeeper.watching()
        for session in sessions:
            session.disconnect(fault.for_ms + self._world.between(0, BACK_WITHIN_MS), survives=fault.pick % 2 == 0)
        return bool(sessions)

    def _lost_answer(self, fault: Fault) -> bool:
        what = LOSE_ANSWERS[fault.pick % len(LOSE_ANSWERS)]
        is_stored = fault.pick // len(LOSE_ANSWERS) % 3
        self._cluster.zookeeper.take_next(what, Taken.ANSWER if is_stored else Taken.REQUEST)
        return True

    def _late_write(self, fault: Fault) -> bool:
        """Delay the next ISR change. Its sender is killed, and is back before the change lands."""

        def sent(process: Process) -> None:
            if isinstance(process, BrokerProcess):
                self._world.after(0, "is killed", lambda: self._late_sender(process, fault), on=process)

        self._cluster.zookeeper.hold_next("changes an ISR", fault.for_ms, sent)
        return True

    def _late_sender(self, process: BrokerProcess, fault: Fault) -> None:
        if self._healed:
            return
        if fault.pick % 3 == 0:
            self._lost_power(process, fault.for_ms // 4)
        else:
            self._killed(process, self._world.between(2, 15))

    def _registration_removed(self, fault: Fault) -> bool:
        """Remove the registration of a suspect that lives, or has just registered and reads its state."""
        if fault.pick % 3 == 0:
            self._cluster.zookeeper.hold_next("reads its state", 20, self._remove_registration_of)
            return True
        registered = sorted(self._cluster.store.registered)
        broker = _picked(registered, fault.pick)
        if broker is None:
            return False
        self._cluster.zookeeper.remove_registration(broker)
        return True

    def _remove_registration_of(self, process: Process) -> None:
        if isinstance(process, BrokerProcess) and not self._healed:
            broker = process.broker
            self._world.after(5, "is suspected", lambda: self._cluster.zookeeper.remove_registration(broker))

    # Controllers

    def _controller_crash(self, fault: Fault) -> bool:
        controller = self._cluster.controller()
        if controller is not None:
            self._crash(controller, fault)
        return controller is not None

    def _crash(self, controller: Process, fault: Fault) -> None:
        controller.ended()
        self._later(fault.for_ms, "starts again", lambda: self._cluster.start_candidate(controller.name))

    def _controller_crash_writing(self, fault: Fault) -> bool:
        """Kill a controller with a write on its way: the write lands, and no other is sent after it."""

        def sent(process: Process) -> None:
            self._world.after(0, "is killed", lambda: None if self._healed else self._crash(process, fault), on=process)

        self._cluster.zookeeper.hold_next("controller writes", fault.pick % 120, sent)
        return True

    def _controller_ousted(self, fault: Fault) -> bool:
        controller = self._cluster.controller()
        if controller is not None:
            self._oust(controller, fault)
        return controller is not None

    def _ousted_writing(self, fault: Fault) -> bool:
        """Oust a controller, or end its session, while a write of it is on its way, and comes late."""

        def ousted(controller: Candidate) -> None:
            if self._healed or self._cluster.controller() is not controller:
                return
            if fault.pick % 2:
                self._cluster.zookeeper.expire(controller.session)
            else:
                self._oust(controller, fault)

        def sent(process: Process) -> None:
            if isinstance(process, Candidate):
                self._world.after(0, "is ousted", lambda: ousted(process))

        self._cluster.zookeeper.hold_next("controller writes", fault.for_ms, sent)
        return True

    def _oust(self, controller: Candidate, fault: Fault) -> None:
        """Remove /controller by hand: another wins, and the old one learns of it late, with its session still alive."""
        self._cluster.zookeeper.deafen(controller.session, 100 + fault.pick % 400)
        self._cluster.zookeeper.vacate()

    # What people do to ZooKeeper

    def _garbage(self, fault: Fault) -> bool:
        return self._for_a_while(self._meddlers.garbage, fault)

    def _lost_folder(self, fault: Fault) -> bool:
        return self._for_a_while(self._meddlers.lost_folder, fault)

    def _no_request(self, fault: Fault) -> bool:
        return self._for_a_while(self._meddlers.no_request, fault)

    def _for_a_while(self, meddle: Callable[[Fault], bool], fault: Fault) -> bool:
        if not meddle(fault):
            return False
        self._later(fault.for_ms, "mends", self._meddlers.mend)
        return True

    def _stray_nodes(self, fault: Fault) -> bool:
        return self._meddlers.stray_nodes(fault)

    def _removed_state(self, fault: Fault) -> bool:
        if not self._meddlers.removed_state(fault):
            return False
        winner = self._cluster.winner()  # one that is loading may have read it
        if winner is not None:
            self._crash(winner, fault)
        return True

    def _restored_checkpoint(self, fault: Fault) -> bool:
        query = _picked(self._cluster.queries, fault.pick)
        return query is not None and query.restored()

    def _no_controller(self, fault: Fault) -> bool:
        names = list(self._cluster.candidates)
        for candidate in list(self._cluster.candidates.values()):
            if candidate is not None and candidate.alive:
                candidate.ended()
        for name in names:
            self._later(fault.for_ms, "starts again", lambda name=name: self._cluster.start_candidate(name))  # type: ignore[misc]
        return True

    # The end

    def heal(self) -> None:
        """Heal the network, ZooKeeper, the disks and the processes. All else must come by itself after that."""
        self._healed = True
        self._cluster.network.heal()
        self._cluster.zookeeper.disarm()
        self._cluster.tables.heal()
        for writer in self._cluster.writers:
            writer.stopped_until_ms = self._world.now_ms
        self._meddlers.mend()
        for host in self._cluster.hosts.values():
            self._heal_host(host)
        for name in self._cluster.candidates:
            self._cluster.start_candidate(name)

    def _heal_host(self, host: Host) -> None:
        files = host.disk.files
        files.dies_in = None
        _set_fast(host)
        process = host.process
        if process is not None:
            process.skew_ms = 0
            if files.failing is not None and not process.stopping:
                process.ended()
        files.full, files.failing = False, None
        self._cluster.start_broker(host.broker)


def _picked(of: Sequence[Of], pick: int) -> Of | None:
    return of[pick % len(of)] if of else None


def _set_fast(host: Host) -> None:
    host.disk.files.slowed = lambda: None
