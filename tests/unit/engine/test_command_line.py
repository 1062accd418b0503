"""Each row of command_line's table: what a line delivers, when, and what the controller learns."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from spark_replication.core.controller.events import (
    BrokerDeathReported,
    BrokerNoted,
    LogInfoRead,
    LogsAhead,
    ReplicasFailed,
)
from spark_replication.engine.controller.command_line import (
    NOTHING,
    QUESTION_PAUSE_MS,
    REPEAT_MS_MAX,
    REPEAT_MS_MIN,
    CommandLine,
    CommandLines,
    LineNews,
)
from spark_replication.errors import (
    BrokerNotAvailable,
    NotReady,
    ReplicationError,
    RequestTimedOut,
    StaleControllerEpoch,
)
from spark_replication.messages.commands import (
    BrokerNotes,
    Command,
    CommandAnswer,
    GetReplicaLogInfo,
    LeaderAndIsr,
    LogInfoWanted,
    PartitionCommand,
    ReplicaLogInfos,
    UpdateMetadata,
)
from spark_replication.model import BrokerId, Registration, ReplicaOf, TopicPartition
from tests.unit.core.stories import FOO, command, state

FOO_1 = TopicPartition("foo", 1)
LIFE = Registration(host="127.0.0.1", port=1, replication_port=2, epoch=6, incarnation="life")
DONE = CommandAnswer(broker_epoch=6, errors={})
LED_BY_1 = command(state(1, [1, 2]), 7)
LED_BY_2 = command(state(2, [1, 2]), 8)
OTHER = command(state(1, [1, 2]), 7, partition=FOO_1)
METADATA = UpdateMetadata(controller_epoch=1, partitions=(), topics={}, brokers={})


def lead(*partitions: PartitionCommand, init: bool = False) -> LeaderAndIsr:
    return LeaderAndIsr(controller_epoch=1, partitions=partitions, topics={}, brokers={}, init=init)


def question(*partitions: TopicPartition) -> GetReplicaLogInfo:
    wanted = tuple(
        LogInfoWanted(topic=each.topic, partition=each.partition, topic_id="id", leader_epoch=4) for each in partitions
    )
    return GetReplicaLogInfo(controller_epoch=1, partitions=wanted)


def sick(*partitions: TopicPartition, code: str = "UNKNOWN_TOPIC_OR_PARTITION") -> CommandAnswer:
    return CommandAnswer(broker_epoch=6, errors={str(each): code for each in partitions})


def line_of(*told: Command) -> CommandLine:
    line = CommandLine(1, LIFE, itertools.count(1))
    for each in told:
        line.tell(each)
    return line


def bare(sent: Command | None) -> Command | None:
    """Without what the line adds to it."""
    return None if sent is None else replace(sent, broker_epoch=None, number=0)


def taken(line: CommandLine, now_ms: int = 0) -> list[Command | None]:
    """Everything that is due, answered as done."""
    found = []
    while (sent := line.next(now_ms)) is not None:
        found.append(bare(sent))
        line.answered(DONE, now_ms)
    return found


@pytest.mark.parametrize("told", [(), (lead(),)])
def test_a_line_that_has_nothing_to_tell_waits(told: tuple[Command, ...]) -> None:
    line = line_of(*told)
    assert line.next(0) is None
    assert line.due_ms(0) is None


def test_what_is_told_is_due_at_once_and_one_command_is_under_way() -> None:
    line = line_of(lead(LED_BY_1))
    assert line.due_ms(5) is not None
    assert bare(line.next(5)) == lead(LED_BY_1)
    assert (line.due_ms(5), line.next(5)) == (None, None)
    line.tell(METADATA)
    assert (line.due_ms(5), line.next(5)) == (None, None)
    line.answered(DONE, 5)
    assert line.due_ms(5) is not None
    assert bare(line.next(5)) == METADATA


def test_a_command_says_for_which_life_it_is_and_its_number_which_repetitions_keep() -> None:
    line = line_of(lead(LED_BY_1), METADATA)
    first = line.next(0)
    assert first == replace(lead(LED_BY_1), broker_epoch=6, number=1)
    line.failed(RequestTimedOut("silent"), 0)
    assert line.next(REPEAT_MS_MIN) == first
    line.answered(DONE, 0)
    assert line.next(0) == replace(METADATA, broker_epoch=6, number=2)


def test_what_waits_meanwhile_is_the_latest_of_each_partition() -> None:
    line = line_of(METADATA)
    line.next(0)
    for told in (lead(LED_BY_1, OTHER, init=True), question(FOO), lead(LED_BY_2)):
        line.tell(told)
    line.answered(DONE, 0)
    assert taken(line) == [lead(LED_BY_2, OTHER, init=True), question(FOO)]


def test_who_leads_as_told_is_confirmed_and_who_follows_is_not() -> None:
    line = line_of(lead(LED_BY_2, OTHER))
    line.next(0)
    assert line.answered(DONE, 0) == LineNews(confirmed=(OTHER,))


@pytest.mark.parametrize("error", [NotReady("starting"), RequestTimedOut("silent"), BrokerNotAvailable("refused")])
def test_what_fails_is_repeated_later_each_time_and_nothing_overtakes_it(error: ReplicationError) -> None:
    line = line_of(lead(LED_BY_1))
    now_ms, delays = 0, []
    for _ in range(8):
        assert bare(line.next(now_ms)) == lead(LED_BY_1)
        line.failed(error, now_ms)
        line.tell(METADATA)
        assert line.next(now_ms) is None
        due_ms = line.due_ms(now_ms)
        assert due_ms is not None
        delays.append(due_ms - now_ms)
        now_ms = due_ms
    assert delays == [REPEAT_MS_MIN, 40, 80, 160, 320, 640, REPEAT_MS_MAX, REPEAT_MS_MAX]
    line.next(now_ms)
    line.answered(DONE, now_ms)
    line.next(now_ms)
    line.failed(error, now_ms)
    assert line.due_ms(now_ms) == now_ms + REPEAT_MS_MIN, "another command begins with the shortest delay"


def test_what_is_refused_for_good_is_not_repeated() -> None:
    line = line_of(lead(LED_BY_1), METADATA)
    line.next(0)
    assert line.failed(StaleControllerEpoch("deposed"), 0) == NOTHING
    assert taken(line) == [METADATA]
    line.tell(lead(LED_BY_1))
    line.next(0)
    refused = line.answered(sick(FOO, code="LOG_DIRECTORY_IN_USE"), 0)
    assert refused == LineNews(refused={FOO: "LOG_DIRECTORY_IN_USE"})
    assert line.due_ms(0) is None


def test_a_sick_partition_waits_longer_each_time_and_holds_up_no_other() -> None:
    line = line_of(lead(LED_BY_1, OTHER))
    line.next(0)
    assert line.answered(sick(FOO), 0) == LineNews(confirmed=(OTHER,))
    assert (line.next(0), line.due_ms(0)) == (None, REPEAT_MS_MIN)
    assert bare(line.next(REPEAT_MS_MIN)) == lead(LED_BY_1)
    line.answered(sick(FOO), 20)
    assert line.due_ms(20) == 20 + 2 * REPEAT_MS_MIN
    line.tell(lead(OTHER))
    assert bare(line.next(21)) == lead(LED_BY_1, OTHER), "it goes with whatever is to be told"
    line.answered(DONE, 21)
    line.tell(lead(LED_BY_1))
    line.next(22)
    line.answered(sick(FOO), 22)
    assert line.due_ms(22) == 22 + REPEAT_MS_MIN, "all was well in between"


def test_news_of_a_sick_partition_take_the_place_of_what_it_could_not_do() -> None:
    line = line_of(lead(LED_BY_1))
    line.next(0)
    line.tell(lead(LED_BY_2))
    line.answered(sick(FOO), 0)
    assert taken(line) == [lead(LED_BY_2)]
    assert line.due_ms(0) is None


def test_what_is_left_waits_until_all_that_was_taken_with_it_is_told() -> None:
    line = line_of(lead(LED_BY_1), METADATA)
    line.next(0)
    line.answered(sick(FOO), 0)
    assert bare(line.next(0)) == METADATA
    line.answered(DONE, 100)
    assert line.due_ms(100) == 100 + REPEAT_MS_MIN


def test_an_init_is_not_repeated_for_the_sake_of_one_sick_partition() -> None:
    line = line_of(lead(LED_BY_1, init=True))
    line.next(0)
    line.answered(sick(FOO), 0)
    assert bare(line.next(REPEAT_MS_MIN)) == lead(LED_BY_1)


def test_what_a_disk_refuses_is_told_of_and_not_repeated() -> None:
    line = line_of(lead(LED_BY_1, OTHER))
    line.next(0)
    news = line.answered(sick(FOO, code="KAFKA_STORAGE_ERROR"), 0)
    assert news == LineNews(confirmed=(OTHER,), events=(ReplicasFailed(1, 6, (ReplicaOf(FOO, LED_BY_1.topic_id),)),))
    assert line.due_ms(0) is None


def test_logs_above_the_epoch_that_was_commanded_are_told_of_and_the_command_is_not_repeated() -> None:
    line = line_of(lead(LED_BY_1, OTHER))
    line.next(0)
    answer = replace(sick(FOO, code="LEADER_EPOCH_BEHIND_LOG"), last_epochs={str(FOO): 12})
    news = line.answered(answer, 0)
    assert news == LineNews(confirmed=(OTHER,), events=(LogsAhead(1, 6, {ReplicaOf(FOO, LED_BY_1.topic_id): 12}),))
    assert line.due_ms(0) is None


def test_what_people_are_to_know_of_a_broker_comes_with_its_answer_to_all_of_the_metadata() -> None:
    line = line_of(METADATA)
    line.next(0)
    notes = BrokerNotes(clock_ahead_ms=600_000)
    news = line.answered(replace(DONE, notes=notes), 0)
    assert news == LineNews(events=(BrokerNoted(1, 6, notes),))


def test_a_broker_without_a_connection_twice_in_a_row_seems_to_be_dead_and_is_told_of_once() -> None:
    gone, line = BrokerNotAvailable("refused"), line_of(METADATA)
    line.next(0)
    assert line.failed(gone, 0) == NOTHING
    line.next(REPEAT_MS_MAX)
    assert line.failed(gone, 0) == LineNews(events=(BrokerDeathReported(1, "life"),))
    line.next(REPEAT_MS_MAX)
    assert line.failed(gone, 0) == NOTHING


@pytest.mark.parametrize("between", [RequestTimedOut("silent"), NotReady("starting"), None])
def test_a_broker_that_is_reached_between_two_failures_does_not_seem_to_be_dead(
    between: ReplicationError | None,
) -> None:
    line = line_of(METADATA)
    line.next(0)
    line.failed(BrokerNotAvailable("reset"), 0)
    line.next(REPEAT_MS_MAX)
    if between is None:
        line.answered(DONE, 0)
        line.tell(METADATA)
    else:
        line.failed(between, 0)
    assert line.next(10 * REPEAT_MS_MAX) is not None
    assert line.failed(BrokerNotAvailable("reset"), 0) == NOTHING


def test_an_answer_about_logs_is_told_and_the_same_question_pauses() -> None:
    answer, line = ReplicaLogInfos(broker_epoch=6, partitions=()), line_of(question(FOO))
    assert bare(line.next(0)) == question(FOO)
    line.tell(question(FOO, FOO_1))
    assert line.answered(answer, 0) == LineNews(events=(LogInfoRead(1, answer),))
    assert bare(line.next(0)) == question(FOO_1)
    line.answered(answer, 0)
    assert line.due_ms(0) == QUESTION_PAUSE_MS
    assert line.next(QUESTION_PAUSE_MS - 1) is None
    assert bare(line.next(QUESTION_PAUSE_MS)) == question(FOO)


def test_a_question_that_is_not_answered_is_repeated() -> None:
    line = line_of(question(FOO))
    line.next(0)
    line.failed(RequestTimedOut("silent"), 0)
    assert bare(line.next(REPEAT_MS_MIN)) == question(FOO)


def test_once_a_life_has_ended_nothing_is_due_and_an_answer_still_counts() -> None:
    line = line_of(lead(LED_BY_1), METADATA)
    line.next(0)
    line.end()
    line.tell(METADATA)
    assert line.answered(DONE, 0) == LineNews(confirmed=(LED_BY_1,))
    assert (line.due_ms(0), line.next(0)) == (None, None)


class Messenger:
    def __init__(self, line: CommandLine) -> None:
        self.line = line
        self.told: list[Command] = []

    def tell(self, command: Command) -> None:
        self.told.append(command)

    def end(self) -> None:
        self.line.end()


def test_each_life_of_a_broker_has_its_own_line_and_the_last_is_ended() -> None:
    begun: list[Messenger] = []

    def carried(line: CommandLine) -> Messenger:
        begun.append(Messenger(line))
        return begun[-1]

    lines = CommandLines(carried)
    broker: BrokerId
    for broker, epoch in ((1, 6), (2, 6), (1, 6), (1, 7)):
        lines.send(broker, replace(LIFE, epoch=epoch), METADATA)
    assert [(each.line.broker, each.line.registration.epoch, len(each.told), each.line.ended) for each in begun] == [
        (1, 6, 2, True),
        (2, 6, 1, False),
        (1, 7, 1, False),
    ]
    lines.gone(2)
    lines.gone(2)  # known already
    assert [each.line.broker for each in lines.messengers] == [1]
    lines.close()
    assert all(each.line.ended for each in begun)
    assert lines.messengers == []
