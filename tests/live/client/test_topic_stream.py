"""One write stream for all partitions of a topic, as a plain Arrow Flight client speaks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

import spark_replication as sr

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

SCHEMA = pa.schema([("number", pa.int64())])


@pytest.fixture(scope="module")
def cluster() -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=1, config={"min.insync.replicas": 1}) as started:
        started.admin.create_topic("orders", SCHEMA, partitions=3, replication_factor=1)
        with sr.Producer(started.bootstrap) as producer:
            for partition in range(3):  # until the broker leads them
                producer.send("orders", numbers(partition), partition=partition).result()
        yield started


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


def answers_to(
    cluster: sr.LocalCluster, path: tuple[str, ...], *sent: tuple[pa.RecordBatch, dict[str, Any] | None]
) -> list[dict[str, Any]]:
    (broker,) = cluster.brokers.values()
    with flight.connect(f"grpc://{broker.host}:{broker.port}") as client:
        writer, reader = client.do_put(flight.FlightDescriptor.for_path(*path), SCHEMA)
        for batch, metadata in sent:
            writer.write_with_metadata(batch, msgspec.json.encode(metadata)) if metadata else writer.write_batch(batch)
        writer.done_writing()
        found = []
        while (told := reader.read()) is not None:
            found.append(msgspec.json.decode(told.to_pybytes()))
        writer.close()
    return found


def test_each_batch_goes_where_it_says_and_has_its_answer(cluster: sr.LocalCluster) -> None:
    sent = [(numbers(100 * place, 100 * place + 1), {"partition": place % 3}) for place in range(300)]
    told = answers_to(cluster, ("orders",), *sent)
    answers = {answer.pop("number"): answer for message in told for answer in message["answers"]}
    assert answers == {
        place: {"base_offset": 1 + 2 * (place // 3), "last_offset": 2 + 2 * (place // 3)} for place in range(300)
    }
    for partition in range(3):
        found = list(sr.Reader(cluster.bootstrap).read("orders", partition=partition, start=1))
        expected = [value for batch, named in sent if named["partition"] == partition for value in batch[0].to_pylist()]
        assert [value for each in found for value in each.batch.column(0).to_pylist()] == expected


def test_a_batch_that_is_refused_does_not_end_the_stream(cluster: sr.LocalCluster) -> None:
    told = answers_to(
        cluster,
        ("orders",),
        (numbers(1), {"partition": 0}),
        (numbers(1), None),
        (numbers(1), {"partition": 9}),
        (numbers(1), {"partition": -1}),
        (numbers(1), {"partition": 1, "acks": 0}),
    )
    answers = {answer["number"]: answer for message in told for answer in message["answers"]}
    assert [answers[number].get("error") for number in range(5)] == [
        None,
        "INVALID_REQUEST",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_REQUEST",
        None,
    ]
    assert answers[1]["message"].startswith("which partition of orders?")


def test_a_partitions_stream_takes_no_other_partition(cluster: sr.LocalCluster) -> None:
    told = answers_to(cluster, ("orders", "2"), (numbers(1), {"partition": 2}), (numbers(1), None))
    assert [answer.get("error") for answer in told] == ["INVALID_REQUEST", None]


def test_a_stream_of_no_topic_is_refused(cluster: sr.LocalCluster) -> None:
    with pytest.raises(flight.FlightServerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        answers_to(cluster, ("nothing",), (numbers(1), {"partition": 0}))
