"""What a reader promises: every record once, in order, whatever happens to leaders and connections."""

from __future__ import annotations

import base64
import itertools
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.read_connections import ReadAnswer
from spark_replication.client.reading.reader import Reader, _in_one_schema
from spark_replication.engine.client.reading import Preference
from spark_replication.errors import (
    AuthenticationFailed,
    BrokerNotAvailable,
    CorruptLog,
    InvalidRequest,
    LogTruncated,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from spark_replication.messages.records import BatchMetadata
from spark_replication.model import TopicConfig, TopicPartition
from spark_replication.ports import LogSlice
from spark_replication.storage.format import batches
from spark_replication.storage.format.batches import schema_to_bytes
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.security.security import Security
from tests.unit.client.fake_cluster import PASSES_MS, SCHEMA, FakeBroker, FakeCluster, FakeLog, StoredBatch
from tests.waiting import eventually

WAIT_S = 20.0


@pytest.fixture
def reader(cluster: FakeCluster) -> Iterator[Reader]:
    with Reader(cluster.bootstrap, deadline_ms=15_000) as opened:
        yield opened


def write(cluster: FakeCluster, batches: int, rows: int = 3) -> None:
    with cluster.changed:
        for _ in range(batches):
            log = cluster.log()
            batch = pa.record_batch([pa.array(range(log.end, log.end + rows), pa.int64())], schema=SCHEMA)
            log.append(batch, BatchMetadata(producer=99, sequence=len(log.batches)))
        cluster.changed.notify_all()


def numbers(found: list[LogBatch]) -> list[int]:
    return [number for batch in found for number in batch.batch.column(0).to_pylist()]


def check_contiguous(found: list[LogBatch]) -> None:
    for batch in found:
        assert batch.batch.column(0).to_pylist() == list(range(batch.base_offset, batch.last_offset + 1))


def test_a_batch_is_one_for_whatever_takes_arrow(cluster: FakeCluster, reader: Reader) -> None:
    write(cluster, 1)
    (found,) = reader.read("orders", 0)
    assert pa.record_batch(found).equals(found.batch)


def test_the_whole_of_what_was_committed_is_read_or_an_error(cluster: FakeCluster, reader: Reader) -> None:
    write(cluster, 4)
    log = cluster.log()
    log.leads_up_to = 6
    assert numbers(list(reader.read("orders", 0, stop=12))) == list(range(6)), "as much as there is"
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(lambda: numbers(list(reader.read("orders", 0, stop=12, whole=True))))
        assert not reading.done()
        log.leads_up_to = None
        assert reading.result(WAIT_S) == list(range(12))
    with Reader(cluster.bootstrap, deadline_ms=1_500) as soon:
        log.leads_up_to = 6
        with pytest.raises(LogTruncated, match="all below offset 12 was committed, and its leader has it up to 6 only"):
            list(soon.read("orders", 0, stop=12, whole=True))
    with pytest.raises(InvalidRequest, match="whole=True without a stop"):
        reader.read("orders", 0, whole=True)


def test_it_reads_to_the_high_watermark(cluster: FakeCluster, reader: Reader) -> None:
    write(cluster, 4)
    found = list(reader.read("orders", 0))
    assert numbers(found) == list(range(12))
    assert [(batch.base_offset, batch.last_offset) for batch in found] == [(0, 2), (3, 5), (6, 8), (9, 11)]
    assert {(batch.leader_epoch, batch.timestamp, batch.high_watermark) for batch in found} == {(0, 7, 12)}
    assert list(reader.read("orders", 0, start=12)) == []


@pytest.mark.parametrize(("start", "stop"), [(0, 12), (1, 11), (4, 5), (3, 6), (2, None), (5, 5), (0, 100), (11, 12)])
def test_a_range_is_trimmed_to_the_record(cluster: FakeCluster, reader: Reader, start: int, stop: int | None) -> None:
    write(cluster, 4)
    found = list(reader.read("orders", 0, start=start, stop=stop))
    check_contiguous(found)
    assert numbers(found) == list(range(start, min(12, 12 if stop is None else stop)))


def test_columns_are_asked_for(cluster: FakeCluster, reader: Reader) -> None:
    write(cluster, 1)
    assert [batch.batch.schema.names for batch in reader.read("orders", 0, columns=["number"])] == [["number"]]


@pytest.mark.parametrize("every", [1, 3])
def test_a_connection_that_dies_loses_and_doubles_nothing(cluster: FakeCluster, reader: Reader, every: int) -> None:
    write(cluster, 30)
    died: set[int] = set()

    def before_read(broker: FakeBroker, stored: StoredBatch) -> None:
        place = stored.base_offset // 3
        if place % every == 0 and place not in died:
            died.add(place)
            broker.proxy.cut()

    cluster.before_read = before_read
    found = list(reader.read("orders", 0, start=1))
    check_contiguous(found)
    assert numbers(found) == list(range(1, 90))
    assert len(died) == 30 // every


def test_it_goes_on_at_the_new_leader(cluster: FakeCluster, reader: Reader) -> None:
    write(cluster, 20)

    def before_read(broker: FakeBroker, stored: StoredBatch) -> None:
        if stored.base_offset == 30 and broker.id == 1:
            cluster.lead(2)
            broker.proxy.down()

    cluster.before_read = before_read
    found = list(reader.read("orders", 0))
    check_contiguous(found)
    assert numbers(found) == list(range(60))


def test_follow_waits_for_more_and_survives_leaders(cluster: FakeCluster, reader: Reader) -> None:
    write(cluster, 1)
    found = []
    for batch in reader.read("orders", 0, follow=True):
        found.append(batch)
        if batch.last_offset == 2:
            cluster.lead(2)
            write(cluster, 1)
        elif batch.last_offset == 5:
            cluster.brokers[2].proxy.cut()
            write(cluster, 1)
        elif batch.last_offset == 8:
            break
    assert numbers(found) == list(range(9))


def test_follow_ends_at_stop(cluster: FakeCluster, reader: Reader) -> None:
    write(cluster, 2)
    assert numbers(list(reader.read("orders", 0, stop=4, follow=True))) == [0, 1, 2, 3]


def test_closing_ends_a_read_that_waits(cluster: FakeCluster) -> None:
    reader = Reader(cluster.bootstrap)
    write(cluster, 1)
    found: list[LogBatch] = []
    first = threading.Event()

    def follow() -> None:
        for batch in reader.read("orders", 0, follow=True):
            found.append(batch)
            first.set()

    following = threading.Thread(target=follow)
    following.start()
    assert first.wait(WAIT_S)
    reader.close()
    following.join(WAIT_S)
    assert not following.is_alive()
    assert numbers(found) == [0, 1, 2]


def test_a_gap_is_an_error(cluster: FakeCluster, reader: Reader) -> None:
    write(cluster, 3)
    del cluster.log().batches[1]
    with pytest.raises(CorruptLog, match="offset 3 was next, but the broker sent 6"):
        list(reader.read("orders", 0))


def test_what_came_before_a_damaged_answer_is_not_given_again(
    cluster: FakeCluster, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was damaged on its way: asked again, the broker looks at the checksums before it sends."""
    write(cluster, 3)
    whole, answers = ReadAnswer.records, itertools.count()

    def damaged_once(answer: ReadAnswer) -> LogSlice | None:
        if next(answers) == 1:
            raise CorruptLog("a batch does not have its CRC-32C")
        return whole(answer)

    monkeypatch.setattr(ReadAnswer, "records", damaged_once)
    assert numbers([*reader.read("orders", 0)]) == [*range(9)]
    assert next(answers) > 3, "one was asked for twice"


def test_what_no_retry_mends_is_raised(cluster: FakeCluster, reader: Reader) -> None:
    with pytest.raises(OffsetOutOfRange):
        list(reader.read("orders", 0, start=1))
    with pytest.raises(UnknownTopicOrPartition, match="orders-7"):
        list(reader.read("orders", 7))
    for start, stop in ((-1, None), (3, 2)):
        with pytest.raises(InvalidRequest):
            reader.read("orders", 0, start=start, stop=stop)
    with pytest.raises(InvalidRequest, match="no time zone"):
        reader.read("orders", 0, start_time=datetime(2026, 11, 21))
    with pytest.raises(InvalidRequest, match="named twice"):
        reader.read("orders", 0, columns=["number", "number"])
    with pytest.raises(InvalidRequest, match="column 'word' is not in the topic"):
        list(reader.read("orders", 0, columns=["word"]))


def written_at(cluster: FakeCluster, *times_ms: int) -> None:
    for time_ms in times_ms:
        cluster.log().now_ms = time_ms
        write(cluster, 1)


@pytest.mark.parametrize("prefer", ["leader", "follower"])
@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ({"start": "earliest"}, 3),
        ({"start": "latest"}, 12),
        ({"start_time": 0}, 3),
        ({"start_time": 2_000}, 3),
        ({"start_time": datetime.fromtimestamp(2.0005, UTC)}, 6),
        ({"start_time": 3_000}, 6),
        ({"start_time": 4_001}, 12),
    ],
)
def test_it_begins_where_its_leader_says_whoever_is_preferred(
    cluster: FakeCluster, prefer: Preference, asked: dict[str, Any], first: int
) -> None:
    written_at(cluster, 1_000, 2_000, 3_000, 4_000)
    del cluster.log().batches[0]  # retention has
    cluster.log().followers_end = 6
    assert read_by(cluster, prefer, **asked)[0] == list(range(first, 12))
    assert read_by(cluster, prefer, stop=8, **asked)[0] == list(range(first, 8))


def test_where_it_begins_is_found_out_once(cluster: FakeCluster, reader: Reader) -> None:
    """A broken connection before that is known asks again; one after that goes on."""
    written_at(cluster, 1_000, 2_000, 3_000)
    beginnings: list[int] = []

    def before_beginning(broker: FakeBroker) -> None:
        beginnings.append(broker.id)
        if len(beginnings) == 1:
            broker.proxy.cut()

    def before_read(broker: FakeBroker, _stored: StoredBatch) -> None:
        if len(cluster.served) == 0:
            cluster.log().batches[0] = cluster.log().batches[0]._replace(timestamp_ms=9_000)
            cluster.lead(2)
            broker.proxy.cut()

    cluster.before_beginning, cluster.before_read = before_beginning, before_read
    assert numbers(list(reader.read("orders", 0, start_time=2_000))) == list(range(3, 9))
    assert len(beginnings) == 2


def test_what_would_take_much_comes_in_pieces_each_at_its_offset(
    cluster: FakeCluster, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(cluster, 2)
    wider = SCHEMA.append(pa.field("late", pa.int64()))
    text = base64.b64encode(schema_to_bytes(wider)).decode()
    cluster.topics["orders"] = TopicConfig(schema=text, earlier_columns=(1,))
    monkeypatch.setattr(batches, "PIECE_BYTES_MAX", 1)
    found = [*reader.read("orders", 0, start=1)]
    check_contiguous(found)
    assert [each.base_offset for each in found] == [1, 2, 3, 4, 5]
    assert {each.batch.schema for each in found} == {wider}


def test_whoever_took_a_dead_leaders_port_keeps_nobody_from_the_next_leader(cluster: FakeCluster) -> None:
    write(cluster, 1)
    cluster.tokens = Tokens.of(Token("of-this-cluster"))
    security = Security(mode="token", tokens=cluster.tokens)
    with Reader(cluster.bootstrap, security=security, deadline_ms=15_000) as reader:
        assert numbers(list(reader.read("orders", 0))) == [0, 1, 2]
        for broker in cluster.brokers.values():
            broker.proxy.cut()
        cluster.impostors = {1}
        cluster.after_refusal = lambda: cluster.lead(2)
        assert numbers(list(reader.read("orders", 0))) == [0, 1, 2]


def test_a_leader_that_lets_nobody_in_is_told_of_once_time_is_over(cluster: FakeCluster) -> None:
    write(cluster, 1)
    cluster.tokens = Tokens.of(Token("of-this-cluster"))
    cluster.impostors = {1}
    security = Security(mode="token", tokens=cluster.tokens)
    began_s = time.monotonic()
    with (
        Reader(cluster.bootstrap, security=security, deadline_ms=1_000) as reader,
        pytest.raises(AuthenticationFailed),
    ):
        list(reader.read("orders", 0))
    assert time.monotonic() - began_s >= 0.8, "its port may be another's: the next leader is waited for"


def test_a_reader_that_no_broker_lets_in_does_not_wait(cluster: FakeCluster) -> None:
    write(cluster, 1)
    cluster.tokens = Tokens.of(Token("of-this-cluster"))
    security = Security(mode="token", tokens=Tokens.of(Token("of-another")))
    began_s = time.monotonic()
    with (
        Reader(cluster.bootstrap, security=security, deadline_ms=60_000) as reader,
        pytest.raises(AuthenticationFailed),
    ):
        list(reader.read("orders", 0))
    assert time.monotonic() - began_s < WAIT_S


def test_from_the_latest_on_nothing_that_comes_is_missed(cluster: FakeCluster) -> None:
    """Though the stream that found out where that was has ended when it comes."""
    write(cluster, 2)

    def before_beginning(_broker: FakeBroker) -> None:
        cluster.before_beginning = lambda _broker: None
        write(cluster, 1)

    cluster.before_beginning = before_beginning
    with Reader(cluster.bootstrap) as reader:
        found = next(reader.read("orders", 0, start="latest", follow=True))
    assert found.batch.column(0).to_pylist() == [6, 7, 8]


def test_a_beginning_that_retention_takes_before_it_is_read_is_looked_for_again(
    cluster: FakeCluster, reader: Reader
) -> None:
    write(cluster, 3)
    began: list[int] = []

    def before_beginning(_broker: FakeBroker) -> None:
        began.append(cluster.log().start)
        if len(began) == 1:
            del cluster.log().batches[0]

    cluster.before_beginning = before_beginning
    assert numbers(list(reader.read("orders", 0, start="earliest"))) == list(range(3, 9))
    assert began == [0, 3]
    with pytest.raises(OffsetOutOfRange):
        list(reader.read("orders", 0, start=0))


def test_closing_ends_a_read_that_looks_for_its_beginning(cluster: FakeCluster) -> None:
    write(cluster, 1)
    with Reader(cluster.bootstrap) as reader:
        cluster.before_beginning = lambda _broker: reader.close()
        assert list(reader.read("orders", 0, start="earliest")) == []


def read_by(cluster: FakeCluster, prefer: Preference, **asked: Any) -> tuple[list[int], list[int]]:
    """The numbers, and who served each batch."""
    with Reader(cluster.bootstrap, prefer=prefer, deadline_ms=15_000) as reader:
        return numbers(list(reader.read("orders", 0, **asked))), cluster.served


@pytest.mark.parametrize(("prefer", "served"), [("leader", 1), ("follower", 2), (1, 1), (2, 2), (9, 1)])
def test_who_is_preferred_serves_it_all(cluster: FakeCluster, prefer: Preference, served: int) -> None:
    write(cluster, 4)
    assert read_by(cluster, prefer, start=1, stop=11) == (list(range(1, 11)), [served] * 4)


def test_the_leader_serves_what_a_follower_does_not_know_to_be_committed(cluster: FakeCluster) -> None:
    write(cluster, 4)
    cluster.log().followers_end = 6
    assert read_by(cluster, "follower") == (list(range(12)), [2, 2, 1, 1])


def test_the_leader_serves_where_a_follower_has_nothing_yet(cluster: FakeCluster) -> None:
    write(cluster, 4)
    cluster.log().followers_end = 3
    assert read_by(cluster, "follower", start=6) == (list(range(6, 12)), [1, 1])


def test_a_follower_that_is_not_in_sync_is_not_asked(cluster: FakeCluster) -> None:
    write(cluster, 2)
    cluster.in_sync = {1}
    assert read_by(cluster, "follower") == (list(range(6)), [1, 1])


@pytest.mark.parametrize("dies_at", [0, 6])
def test_the_leader_goes_on_where_a_follower_dies(cluster: FakeCluster, dies_at: int) -> None:
    write(cluster, 4)

    def before_read(broker: FakeBroker, stored: StoredBatch) -> None:
        if broker.id == 2 and stored.base_offset == dies_at:
            broker.proxy.down()

    cluster.before_read = before_read
    found, _served = read_by(cluster, "follower")
    assert found == list(range(12))


def test_a_follower_is_followed_and_the_leader_after_it(cluster: FakeCluster) -> None:
    write(cluster, 1)
    found: list[LogBatch] = []
    with Reader(cluster.bootstrap, prefer="follower") as reader:
        for batch in reader.read("orders", 0, follow=True):
            found.append(batch)
            if batch.last_offset == 2:
                write(cluster, 1)
            elif batch.last_offset == 5:
                cluster.brokers[2].proxy.down()
                write(cluster, 1)
            else:
                break
    assert numbers(found) == list(range(9))
    assert (cluster.served[:2], cluster.served[-1]) == ([2, 2], 1)


@pytest.mark.parametrize("prefer", ["nobody", -1, None])
def test_a_preference_that_says_nothing_is_refused(cluster: FakeCluster, prefer: Any) -> None:
    with pytest.raises(InvalidRequest, match="prefer="):
        Reader(cluster.bootstrap, prefer=prefer)


def test_the_deadline_ends_the_search_for_a_leader(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.proxy.down()
    with Reader(cluster.bootstrap, deadline_ms=300) as reader, pytest.raises(BrokerNotAvailable):
        list(reader.read("orders", 0))


def test_a_read_has_one_schema_whatever_the_brokers_that_serve_it_know() -> None:
    wider = SCHEMA.append(pa.field("name", pa.string()))
    narrow, wide = (
        pa.record_batch([pa.array([1, 2])], schema=SCHEMA),
        pa.record_batch([pa.array([3]), pa.array(["c"])], schema=wider),
    )
    words = pa.record_batch({"word": pa.array(["one"])})
    closed: list[bool] = []

    def given(*batches: pa.RecordBatch) -> Generator[LogBatch, None, None]:
        try:
            for offset, batch in enumerate(batches):
                yield LogBatch(
                    topic="orders",
                    partition=0,
                    batch=batch,
                    base_offset=offset,
                    last_offset=offset,
                    leader_epoch=0,
                    timestamp=0,
                    high_watermark=9,
                )
        finally:
            closed.append(True)

    def shown(*batches: pa.RecordBatch) -> list[pa.RecordBatch]:
        found = list(_in_one_schema(given(*batches)))
        assert [each.base_offset for each in found] == list(range(len(batches)))
        return [each.batch for each in found]

    first, second, third = shown(narrow, wide, narrow)
    assert first is third is narrow
    assert second.equals(pa.record_batch([pa.array([3])], schema=SCHEMA))
    first, second = shown(wide, narrow)
    assert first is wide
    assert second.schema == wider
    assert second.to_pydict() == {"number": [1, 2], "name": [None, None]}
    assert shown(narrow, words, wide) == [narrow, words, wide], "a topic that was made again has its own"
    following = _in_one_schema(given(narrow, wide))
    next(following)
    assert isinstance(following, Generator)
    closed.clear()
    following.close()
    assert closed == [True], "and with it the stream of who wants no more"


def test_a_read_does_not_end_before_its_leader_knows_the_end(cluster: FakeCluster, reader: Reader) -> None:
    """KIP-207: a new leader knows less than was acknowledged, for a moment."""
    write(cluster, 2)
    log = cluster.log()
    log.knows_the_end = False
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(lambda: numbers(list(reader.read("orders", 0))))
        eventually(lambda: log.refused_ends > 1, "it asks again")
        write(cluster, 1)
        log.knows_the_end = True
        assert reading.result(WAIT_S) == [*range(9)]


def test_an_end_that_no_leader_knows_is_an_error_once_time_is_over(cluster: FakeCluster) -> None:
    write(cluster, 1)
    cluster.log().knows_the_end = False
    with Reader(cluster.bootstrap, deadline_ms=PASSES_MS) as reader, pytest.raises(OffsetNotAvailable):
        list(reader.read("orders", 0))


@pytest.mark.parametrize("grows_by", [0, 5])
def test_a_log_that_was_cut_below_a_read_is_an_error_however_far_it_has_grown(
    cluster: FakeCluster, reader: Reader, grows_by: int
) -> None:
    """KIP-320: what has these offsets now is not what comes next."""
    write(cluster, 4)
    following = reader.read("orders", 0, follow=True)
    found = [next(following) for _ in range(4)]
    with cluster.changed:
        cluster.log().cut(2, leader_epoch=1)
        write(cluster, grows_by)
    with pytest.raises(LogTruncated, match="cut at 6"):
        next(following)
    last = found[-1]
    with pytest.raises(LogTruncated, match="cut at 6"):
        list(reader.read("orders", 0, start=last.last_offset + 1, last_epoch=last.leader_epoch))
    rest = reader.read("orders", 0, start=6, last_epoch=found[1].leader_epoch)
    assert numbers(list(rest)) == [*range(6, 6 + 3 * grows_by)]


def test_a_place_is_an_offset_with_the_epoch_before_it(reader: Reader) -> None:
    with pytest.raises(InvalidRequest, match="last_epoch=3 is of the record before an offset"):
        list(reader.read("orders", 0, start="latest", last_epoch=3))


# All partitions of a topic


def fill(cluster: FakeCluster, partition: int, *numbers: int) -> None:
    with cluster.changed:
        log = cluster.log("orders", partition)
        for number in numbers:
            batch = pa.record_batch([pa.array([number], pa.int64())], schema=SCHEMA)
            log.append(batch, BatchMetadata(producer=99, sequence=len(log.batches)))
        cluster.changed.notify_all()


def test_a_topic_is_read_whole_each_partition_in_its_order(cluster: FakeCluster, reader: Reader) -> None:
    for partition in range(3):
        fill(cluster, partition, *range(10 * partition, 10 * partition + 4))
    found = list(reader.read("orders"))
    assert [(each.topic, each.partition, each.base_offset) for each in found] == [
        ("orders", partition, offset) for partition in range(3) for offset in range(4)
    ]
    assert numbers(found) == [*range(4), *range(10, 14), *range(20, 24)]
    assert numbers(list(reader.read("orders", start="latest"))) == []
    assert numbers(list(reader.read("orders", columns=["number"], start_time=0))) == numbers(found)
    assert {each.partition for each in reader.read("orders", 1)} == {1}


def test_who_follows_a_topic_gets_what_comes_to_any_partition_and_to_new_ones(
    cluster: FakeCluster, reader: Reader
) -> None:
    fill(cluster, 1, 1)
    read = reader.read("orders", follow=True)
    assert numbers([next(read)]) == [1]
    fill(cluster, 2, 2)
    assert numbers([next(read)]) == [2]
    with cluster.changed:
        cluster.logs[TopicPartition("orders", 3)] = FakeLog()
    fill(cluster, 3, 3)
    late = next(read)
    assert (late.partition, numbers([late])) == (3, [3])
    fill(cluster, 0, *range(100))
    assert numbers([next(read) for _ in range(100)]) == [*range(100)], "more than wait at a time"


def test_the_error_of_a_partition_ends_a_read_of_all(cluster: FakeCluster, reader: Reader) -> None:
    fill(cluster, 0, 0, 1)
    read = reader.read("orders", follow=True)
    assert numbers([next(read), next(read)]) == [0, 1]
    with cluster.changed:
        cluster.log("orders", 0).cut(1, leader_epoch=1)
        cluster.changed.notify_all()
    with pytest.raises(LogTruncated):
        list(read)


def test_closing_ends_a_read_of_all_that_waits(cluster: FakeCluster) -> None:
    reader = Reader(cluster.bootstrap)
    fill(cluster, 0, 1)
    read = reader.read("orders", follow=True)
    assert numbers([next(read)]) == [1]
    with ThreadPoolExecutor(1) as thread:
        rest = thread.submit(list, read)
        reader.close()
        assert rest.result(WAIT_S) == []


@pytest.mark.parametrize("asked", [{"start": 3}, {"stop": 3}, {"start": 0, "stop": 0}, {"last_epoch": 1}])
def test_an_offset_is_of_one_partition(reader: Reader, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="an offset is of one partition of orders: name that"):
        reader.read("orders", **asked)
