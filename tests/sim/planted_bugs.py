"""Mistakes that somebody could make in one line, and the invariants that tell of each."""

from __future__ import annotations

from typing import NamedTuple

from spark_replication.sim.run import UNEXPECTED


class PlantedBug(NamedTuple):
    """`line` occurs once in `file`; `becomes` takes its place. invariants: any of these may be the one that breaks.
    also: a second place, where one alone stands in for the other.

    seed: where the search begins; of a bug that few seeds find, one that did. Whatever changes their stories makes the
    search longer, not fail: `sim --seeds 1..3000 --first-failure`, with the bug in place, tells the next.
    """

    name: str
    file: str
    line: str
    becomes: str
    invariants: frozenset[str]
    profile: str = "default"
    seed: int = 1
    also: tuple[str, str, str] | None = None

    @property
    def places(self) -> list[tuple[str, str, str]]:
        """Each a file, a line of it, and what that becomes."""
        return [(self.file, self.line, self.becomes), *([self.also] if self.also is not None else [])]


def bug(
    name: str,
    file: str,
    line: str,
    becomes: str,
    *invariants: str,
    profile: str = "default",
    seed: int = 1,
    also: tuple[str, str, str] | None = None,
) -> PlantedBug:
    return PlantedBug(name, file, line, becomes, frozenset(invariants), profile, seed, also)


ISR = "isr_member_holds_all_committed"
ELR = "elr_holds_all_committed"
ACKED = "acked_records_survive"
PREFIX = "committed_prefixes_agree"
HW_FALLS = "high_watermark_never_falls"
MATCH = "logs_match"
ONCE = "idempotent_batches_once"
CHAIN = "events_are_a_chain"
GETS_ON = "producers_get_on"
LOSS = (ISR, ELR, ACKED, PREFIX)
# Somebody was not told what everybody is to know.
UNTOLD = (
    "every_partition_leads_again",
    "followers_catch_up",
    "no_reassignment_stuck",
    "routes_converge",
    "mirror_converges",
)

PLANTED_BUGS = (
    bug(
        "the process's own min ISR in place of the stored one",
        "engine/replica_loop.py",
        "            self._carry_out(command, me, now_ms)\n",
        "            min_isr = min(type(self._own.settings)().min_insync_replicas, len(command.replicas))\n"
        "            from msgspec.structs import replace\n"
        "            believed = replace(command.state, min_isr=min_isr)\n"
        "            self._carry_out(replace(command, state=believed), me, now_ms)\n",
        *LOSS,
    ),
    bug(
        "join the ISR against a restarted leader's checkpointed high watermark",
        "core/replica/isr.py",
        "max(leading.high_watermark, leading.epoch_start, leading.end_at_start)",
        "max(leading.high_watermark, leading.epoch_start)",
        *LOSS,
        profile="restarts",
    ),
    bug(
        "join the ISR below the epoch's start",
        "core/replica/isr.py",
        "max(leading.high_watermark, leading.epoch_start, leading.end_at_start)",
        "leading.high_watermark",
        *LOSS,
    ),
    bug(
        "leave out a leader's check of its own broker epoch",
        "core/replica/isr.py",
        "    if brokers.epochs.get(write.broker) != write.broker_epoch:",
        "    if False:",
        *LOSS,
        "followers_catch_up",  # the next life does not know what the last has written
        profile="zookeeper",
    ),
    bug(
        "count a void member as in sync",
        "core/law/brokers.py",
        "if epoch < self.clean_since.get(broker, 0))",
        "if epoch < 0)",
        *LOSS,
    ),
    bug(
        "let a void leader lead again",
        "core/replica/replica.py",
        "    return state.leader == me.broker and state.epochs[me.broker] >= me.clean_since",
        "    return state.leader == me.broker",
        *LOSS,
    ),
    bug(
        "drop replicas and write the final assignment in two steps",
        "core/controller/settling.py",
        "yield Step((TopicWrite(topic=topic_name, state=state, version=version), *writes), tuple(stops), names)",
        "yield Step((TopicWrite(topic=topic_name, state=state, version=version),), (), names)\n"
        "        yield Step(tuple(writes), tuple(stops), names)",
        "isr_within_replicas",
    ),
    bug(
        "serve a re-added partition from its old log",
        "engine/replica_loop.py",
        "created > max(log.epochs.first_epoch, 0)",
        "False",
        PREFIX,
        ONCE,
        seed=354,
    ),
    bug(
        "count the end of a diverging fetch",
        "engine/leader_role.py",
        "        if not replica.on_log(self.part, asked, view):",
        "        if asked.offset > self._own.log.log_end:",
        *LOSS,
    ),
    bug(
        "show bytes before their index entry is written",
        "storage/segment.py",
        "        self._files.write(self.index_path, entries, self.index_bytes)\n",
        '        self._files.write(self.index_path, b"", self.index_bytes)\n',
        *LOSS,
        "every_partition_leads_again",
        "followers_catch_up",
    ),
    bug(
        "count as flushed what came while it was",
        "storage/partition_log.py",
        "max(self._flushed_end, flush.end)",
        "self._log_end",
        *LOSS,
        profile="power",
        seed=324,
    ),
    bug(
        "vouch for what is not flushed",
        "engine/flushing.py",
        "return self._log.flushed_end if self.always else self._log.log_end",
        "return self._log.log_end",
        *LOSS,
        profile="segments",
    ),
    bug(
        "flush no names",
        "storage/log_flush.py",
        "            for folder in self._folders:\n",
        "            for folder in ():\n",
        *LOSS,
        ONCE,
    ),
    bug(
        "serve a follower's records up to the high watermark of before",
        "engine/replica_loop.py",
        "                created=state.created,\n",
        "                created=state.created,\n                served=self.high_watermark,\n",
        *LOSS,
        profile="restarts",
        seed=51,
    ),
    bug(
        "truncate to the high watermark",
        "engine/follower_role.py",
        "            own.numbered.truncate(replica.truncation(own.view, parted))",
        "            own.numbered.truncate(following.high_watermark)",
        *LOSS,
        "followers_catch_up",
    ),
    bug(
        "ignore the joining replica in the high watermark",
        "core/replica/replica.py",
        "        return self.state.isr | self.pending.state.isr if self.pending is not None else self.state.isr",
        "        return self.state.isr",
        *LOSS,
    ),
    bug(
        "let the high watermark move under min ISR",
        "core/replica/replica.py",
        "    if least <= leading.high_watermark or len(leading.in_sync) < leading.state.min_isr:",
        "    if least <= leading.high_watermark or not leading.in_sync:",
        *LOSS,
    ),
    bug(
        "acknowledge on the local append",
        "engine/leader_role.py",
        "        reached = self.part.high_watermark if acks_all else self._own.vouched_end",
        "        reached = self._own.log.log_end",
        ACKED,
    ),
    bug(
        "do not check the controller epoch",
        "engine/broker_loop.py",
        "        if command.controller_epoch < self._controller_epoch:",
        "        if command.controller_epoch < 0:",
        "deposed_controller_changes_nothing",
    ),
    bug(
        "send before persisting",
        "engine/controller_loop.py",
        "        self._store.commit([step.writes for step in decided.steps], stored)",
        "        self._store.commit([step.writes for step in decided.steps], lambda _answers: None)\n"
        '        stored([Stored(tuple(Made(getattr(w, "version", 0) + 1) for w in s.writes)) for s in decided.steps])',
        "persisted_before_sent",
        "mirror_never_ahead",
    ),
    bug(
        "keep an uncleanly restarted broker in the ISR",
        "core/law/partition_change.py",
        "    staying = (state.isr & brokers.electable) - void\n",
        "    staying = state.isr & brokers.electable\n",
        *LOSS,
        "every_partition_leads_again",
    ),
    bug(
        "keep an uncleanly restarted broker in the ELR",
        "core/law/partition_change.py",
        "        elr = leaving - void\n",
        "        elr = leaving\n",
        *LOSS,
        "every_partition_leads_again",
    ),
    bug(
        "apply an older partition epoch",
        "engine/replica_loop.py",
        "        if command.order > self._order:",
        "        if True:",
        "leader_epoch_never_falls",
        *LOSS,
    ),
    bug(
        "drop the old replicas before the new are in the ISR",
        "core/controller/reassignment.py",
        "    if not state.isr.issuperset(wanted):\n",
        "    if not state.isr:\n",
        *LOSS,
    ),
    bug(
        "forget the epoch's start offset",
        "storage/partition_log.py",
        "        epochs = self._epochs.begun(epoch, self._log_end)\n",
        "        epochs = self._epochs.begun(epoch, self._log_start)\n",
        *LOSS,
        ONCE,
        "followers_catch_up",
    ),
    bug(
        "append a batch below the head of another schema",
        "storage/partition_log.py",
        "if not is_full and not is_old and last.schema == schema:",
        "if not is_full and not is_old:",
        "batches_have_their_own_schema",
    ),
    bug(
        "believe a head that a loss of power has torn",
        "storage/recovery.py",
        "    others = ((named != 0) & (named != crc32c(head))).nonzero()[0]\n",
        "    others = named[:0]\n",
        "batches_have_their_own_schema",
        *LOSS,
        ONCE,
        MATCH,
        "followers_catch_up",
        profile="segments",
        seed=279,
    ),
    bug(
        "vouch after a restart for what a failed sync has lost",
        "storage/partition_log.py",
        "                write_again(self._files, segment.data_path, kept)\n",
        "                pass\n",
        *LOSS,
        MATCH,
        profile="syncs",
    ),
    bug(
        "begin a follower's segment with the schema of its last",
        "storage/partition_log.py",
        "            segment = continued or self._created(schema)\n",
        "            schema = self._segments[-1].schema if self._segments else schema\n"
        "            segment = continued or self._created(schema)\n",
        "batches_have_their_own_schema",
        *LOSS,
        "followers_catch_up",
    ),
    bug(
        "take a killed process's clean chain for granted after a loss of power",
        "core/law/clean_chain.py",
        "    return started if same_boot_and_directory and trust_page_cache else None",
        "    return started",
        *LOSS,
    ),
    bug(
        "believe what came in place of a cut, as what was flushed there before",
        "storage/partition_log.py",
        "            self._recovery_point.fall_to(boundary)\n",
        "",
        *LOSS,
        "followers_catch_up",
        profile="syncs",
        seed=4884,
    ),
    bug(
        "never ask again once the disk was full",
        "engine/disk_trouble.py",
        "        self._since_ms = None\n        return True",
        "        return False",
        "followers_catch_up",
    ),
    bug(
        "wait for another command once a disk refused one",
        "engine/broker_loop.py",
        "            self.refused.add(command.topic_partition, now_ms)\n",
        "",
        "followers_catch_up",
        profile="drawn",
        seed=382,
    ),
    bug(
        "take any sequence of an unknown producer, and read on after a refusal",
        "core/replica/producers.py",
        "            if sequence == 0:\n",
        "            if sequence == 0 or (known is None and self._forgotten):\n",
        ONCE,
        also=("core/replica/refused_lanes.py", "        if batch.sequence > refused:\n", "        if False:\n"),
    ),
    bug(
        "forget with a log's head who wrote there",
        "engine/numbered_log.py",
        "        if self._producers:\n            self._log.save_producers(",
        "        if False:\n            self._log.save_producers(",
        ONCE,
        seed=17,
    ),
    bug(
        "let a follower begin anew without what its leader knows of producers",
        "engine/leader_role.py",
        'own.numbered.known_below(log.log_start) if begins_anew else b""',
        'b""',
        ONCE,
    ),
    bug(
        "acknowledge whatever comes under a number that is known",
        "core/replica/producers.py",
        "        if size >> _CRC_BITS != rows or (crc is not None and size & _CRC_MASK != crc):\n",
        "        if False:\n",
        ACKED,
        seed=39,
    ),
    bug(
        "settle a partition whose state nobody can read",
        "core/controller/settling.py",
        "    is_decided = partition.topic not in cluster.deleting and not cluster.unreadable.hides(partition)\n",
        "    is_decided = partition.topic not in cluster.deleting\n",
        "unreadable_changes_nothing",
    ),
    bug(
        "quarantine what may be assigned, for all that can be read",
        "engine/broker_loop.py",
        "            if (name, topic_id) not in assigned and not unreadable.hides(name):\n",
        "            if (name, topic_id) not in assigned:\n",
        "unreadable_changes_nothing",
    ),
    bug(
        "tell of a partition that nobody could read as if it were known",
        "core/controller/announcing.py",
        "    is_known = partition in cluster.partitions and cluster.assigned(partition)\n",
        "    is_known = cluster.assigned(partition)\n",
        UNEXPECTED,
        seed=1680466358,
        also=(
            "core/controller/announcing.py",
            "    return is_known and not cluster.unreadable.hides(partition)\n",
            "    return is_known\n",
        ),
    ),
    bug(
        "recover with the shortest of the logs that are known",
        "core/law/unclean_recovery.py",
        "    return max(electable, key=electable.__getitem__)",
        "    return min(electable, key=electable.__getitem__)",
        "acked_records_survive",
    ),
    bug(
        "recover without the longest log, since its disk refuses",
        "core/law/unclean_recovery.py",
        " and not is_over(recovery, now_ms, most_ms)",
        " and False",
        "acked_records_survive",
        seed=2116,
    ),
    bug(
        "leave what has gone meanwhile in the mirror at a take-over",
        "mirror/comparing.py",
        "row.order[0] < whole.zxid and not row.deleted",
        "False",
        "mirror_converges",
        seed=16,
    ),
    bug(
        "write no tombstone",
        "mirror/latest.py",
        "        if known is not None and not isinstance(known, Gone) and known.zxid < zxid:\n",
        "        if False:\n",
        "mirror_converges",
        seed=9,
    ),
    bug(
        "take a partition for shown whose leader has confirmed since",
        "mirror/comparing.py",
        "shown.order >= order",
        "shown.order[:1] >= order[:1]",
        "mirror_converges",
        seed=118,
    ),
    bug(
        "drop a confirmation that comes before its decision is told",
        "mirror/latest_partitions.py",
        "self._ahead[partition] = max((topic_id, leader_epoch), self._ahead.get(partition, NOTHING_CONFIRMED))",
        "pass",
        "mirror_converges",
    ),
    bug(
        "coalesce what happened to a row that waits",
        "mirror/latest.py",
        "        if known is None or known.zxid != row.zxid:\n",
        "        if known is None or (known.zxid != row.zxid and key not in self._waiting):\n",
        CHAIN,
    ),
    bug(
        "show a row before its event, if a leader has confirmed meanwhile",
        "mirror/latest.py",
        "            self._quiet.pop(key, None)\n",
        "",
        CHAIN,
        seed=38,
    ),
    bug(
        "show a row that changes while an earlier one of it is being written, before its event",
        "mirror/latest_partitions.py",
        "        if newest.zxid == row.zxid:\n            self.goes_too(partition)\n            return newest\n",
        "        if newest.command.state.leader_epoch == row.command.state.leader_epoch:\n            return newest\n",
        CHAIN,
    ),
    bug(
        "say of an earlier leader that it has confirmed what a later one has",
        "mirror/latest_partitions.py",
        "if newest is None or not row.active_epoch < newest.active_epoch <= row.command.state.leader_epoch:",
        "if newest is None or not row.active_epoch < newest.active_epoch:",
        "mirror_never_ahead",
    ),
    bug(
        "let go what has changed besides, once it says what its leader has confirmed",
        "mirror/latest_partitions.py",
        "        if newest.zxid == row.zxid:\n            self.goes_too(partition)\n            return newest\n",
        "        self.goes_too(partition)\n",
        "mirror_converges",
        CHAIN,
    ),
    bug(
        "forget what happened once it could not be written",
        "mirror/facts.py",
        "        self._waiting.extendleft(reversed(self._writing))\n",
        "",
        CHAIN,
    ),
    bug(
        "tell again what was stored though no answer came",
        "mirror/chain.py",
        "if event is not None and event.number > last]",
        "if event is not None]",
        CHAIN,
    ),
    bug(
        "go on telling what happened once another controller tells it",
        "mirror/chain.py",
        "        if term_of(last) > self._epoch:\n",
        "        if False:\n",
        CHAIN,
    ),
    bug(
        "believe the rows alone of what a row was, not the events before them",
        "mirror/chain.py",
        "        return ahead if ahead is not None and (known is None or ahead.zxid > known.zxid) else known\n",
        "        return known\n",
        CHAIN,
    ),
    bug(
        "tell of what has vanished only if its row was written",
        "mirror/chain.py",
        "for key, seen in {**shown, **newer}.items()}",
        "for key, seen in shown.items()}",
        CHAIN,
        seed=419,
    ),
    bug(
        "forget a query's producer as any other",
        "core/replica/producers.py",
        "        return self._kept if producer & KEPT_PRODUCER else self._known\n",
        "        return self._known\n",
        ONCE,
        profile="queries",
        seed=2,
    ),
    bug(
        "take rows in another order for another batch",
        "engine/numbered_log.py",
        "crc=None if batch.any_order else batch.crc",
        "crc=batch.crc",
        "queries_get_on",
        profile="queries",
    ),
    bug(
        "give a micro-batch the numbers of the one before",
        "client/window.py",
        "        super().__init__(batches_max=batches_max, bytes_max=bytes_max, batch_bytes=0, epoch=epoch)\n",
        "        super().__init__(batches_max=batches_max, bytes_max=bytes_max, batch_bytes=0)\n",
        ACKED,
        profile="queries",
    ),
    bug(
        "say that all events have their rows while one of others has not",
        "mirror/latest_rows.py",
        "        if not is_behind:\n",
        "        if True:\n",
        CHAIN,
        seed=111,
    ),
    bug(
        "tell what a partition could not do in place of what came meanwhile",
        "engine/pending_commands.py",
        "        self._replicas.update(newer)\n",
        "        self._replicas = newer | self._replicas\n",
        *UNTOLD,
        seed=840,
    ),
    bug(
        "give up a command that gets no answer",
        "engine/command_line.py",
        "        if error.retriable:\n",
        "        if error.retriable and isinstance(error, BrokerNotAvailable):\n",
        *UNTOLD,
    ),
    bug(
        "forget what a partition could not do of a command",
        "engine/command_line.py",
        "                self._left.append(found.again)\n",
        "                pass\n",
        *UNTOLD,
    ),
    bug(
        "ask for a log once",
        "engine/pending_commands.py",
        "        self._wanted.update({wanted.topic_partition: wanted for wanted in command.partitions})\n",
        "        wanted = {each.topic_partition: each for each in command.partitions}\n"
        "        self._wanted.update({p: each for p, each in wanted.items() if p not in self._asked_ms})\n",
        *UNTOLD,
    ),
    bug(
        "go on commanding once another has taken over",
        "engine/candidacy.py",
        "    (Instruction.COMMAND, Event.DEPOSED): 0,\n",
        "",
        *UNTOLD,
    ),
    bug(
        "campaign once",
        "engine/candidacy.py",
        "    **{(phase, Event.FAILED): RETRY_MS for phase in CANDIDATES},\n",
        "",
        *UNTOLD,
        seed=132,
    ),
    bug(
        "leave for good when the session has ended",
        "engine/candidacy.py",
        "            self.instruction = Instruction.LEAVE if self._leaves else Instruction.REST\n",
        "            self.instruction = Instruction.LEAVE\n",
        *UNTOLD,
    ),
    bug(
        "serve without having read what is assigned",
        "engine/broker_host.py",
        "    Do.RECORD: Do.READ,\n",
        "    Do.RECORD: Do.SERVE,\n",
        *UNTOLD,
    ),
    bug(
        "leave no word of the registration, and watch over none",
        "engine/broker_host.py",
        "                return Do.RECORD\n",
        "                return Do.READ\n",
        *UNTOLD,
    ),
    bug(
        "serve though registering again has failed",
        "engine/broker_host.py",
        "            return Do.REST\n",
        "            return Do.SERVE\n",
        *UNTOLD,
        seed=320,
    ),
    bug(
        "a registration that goes while its broker reads goes unnoticed",
        "engine/broker_host.py",
        "(Do.RECORD, Do.READ, Do.SERVE), Do.RESIGN",
        "(Do.SERVE,), Do.RESIGN",
        *UNTOLD,
        profile="zookeeper",
    ),
    bug(
        "over a new connection ask for what is due alone",
        "engine/fetch_session.py",
        "        self._due = dict(self._followed)\n",
        "",
        *UNTOLD,
    ),
    bug(
        "ask no more for a partition that has failed",
        "engine/fetch_session.py",
        "            heapq.heappush(self._later, (now_ms + backoff_ms(failures), partition))\n",
        "            pass\n",
        *UNTOLD,
    ),
    bug(
        "answer no fetch that came before its replica",
        "engine/fetch_session.py",
        "            end.wait_for(number, fetch)\n            refused(error)\n",
        "            refused(error)\n",
        *UNTOLD,
        seed=40,
    ),
    bug(
        "keep a batch that waits where the next one is received",
        "engine/put_end.py",
        "            put.payload = bytes(put.payload)\n",
        "            pass\n",
        *UNTOLD,
        *LOSS,
        GETS_ON,
    ),
    bug(
        "answer a batch as stored that another thread has refused",
        "engine/put_end.py",
        "            self._refuse(put, result)\n",
        "            put.answer.fill(Place(0, 0))\n            self._done(put)\n",
        *LOSS,
    ),
    bug(
        "let nothing follow a batch that had to wait",
        "engine/put_end.py",
        "        if put.is_late:\n",
        "        if False:\n",
        GETS_ON,
    ),
    bug(
        "acknowledge a batch once it is appended",
        "engine/put_end.py",
        "        self._accepted(batch)\n",
        "        put.answer.fill(Place(replica.log.log_end - 1, replica.log.log_end - 1))\n",
        *LOSS,
    ),
    bug(
        "answer a batch as stored of which nothing is known in time",
        "engine/put_end.py",
        "            answer.fill(unconfirmed(self._timeout_ms))\n",
        "            answer.fill(Place(0, 0))\n",
        *LOSS,
    ),
    bug(
        "count a campaign as won whose node is another's",
        "core/claims/campaigning.py",
        "present is not None and present.is_as_sent(sent.info)",
        "present is not None",
        CHAIN,
        *UNTOLD,
        seed=320,
    ),
    bug(
        "win /controller without a new epoch",
        "core/claims/campaigning.py",
        "known.value.epoch + 1, known.version",
        "known.value.epoch, known.version",
        CHAIN,
        *UNTOLD,
    ),
    bug(
        "take a write whose answer was lost for stored",
        "core/law/standing.py",
        "if is_lost and (proof(looks) is not None or all(look.shows for look in looks))",
        "if is_lost",
        "persisted_before_sent",
        *UNTOLD,
        seed=40,
    ),
    bug(
        "take what may have been so before for the proof of a write",
        "core/law/standing.py",
        "if look.shows and isinstance(look.write, (PartitionWrite, TopicWrite))",
        "if look.shows",
        UNEXPECTED,
        "persisted_before_sent",
    ),
)
