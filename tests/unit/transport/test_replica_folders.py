"""Where a replica's files are: told to who asks for them, and of what is there alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_replication.messages.actions import DESCRIBE_RANGES
from spark_replication.messages.ranges import DescribeRanges, FoundRange, WantedRange
from spark_replication.storage.directory.replica_folder import is_here
from spark_replication.transport.flight.actions import call
from tests.unit.transport.flight_broker import ORDERS, FlightBroker, written

SCHEMA = pa.schema([("text", pa.string())])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FlightBroker]:
    started = FlightBroker(tmp_path, SCHEMA)
    yield started
    started.close()


def ask(broker: FlightBroker, **wanted: Any) -> FoundRange:
    asked = WantedRange(**{"topic": ORDERS.topic, "partition": ORDERS.partition, **wanted})
    (found,) = call(broker.client(), DESCRIBE_RANGES, DescribeRanges(ranges=(asked,)), 5_000).ranges
    return found


def test_who_asks_for_files_is_told_of_the_folder(broker: FlightBroker, tmp_path: Path) -> None:
    written(broker.client(), pa.record_batch([pa.array(["a", "b"])], schema=SCHEMA))
    found = ask(broker, files=True)
    assert (found.start, found.end, found.topic_id) == (0, 2, "id-orders")
    assert found.folder is not None
    assert found.folder.path == str(tmp_path / "orders-0.id-orders")
    assert is_here(found.folder, os.geteuid())
    assert not is_here(found.folder, os.geteuid() + 1)


def test_who_does_not_ask_is_not(broker: FlightBroker) -> None:
    assert ask(broker).folder is None


def test_of_a_replica_that_is_not_here_nothing_is_told(broker: FlightBroker) -> None:
    found = ask(broker, files=True, partition=5)
    assert (found.error, found.folder) == ("UNKNOWN_TOPIC_OR_PARTITION", None)
