"""What people are to know of a broker goes with its answer to all of the metadata, and with no other."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_replication.messages.actions import UPDATE_METADATA
from spark_replication.messages.commands import UpdateMetadata
from spark_replication.transport.flight.actions import call
from tests.unit.transport.flight_broker import NOTES, FlightBroker


@pytest.mark.parametrize("complete", [True, False])
def test_the_answer_to_all_of_the_metadata_has_the_notes(tmp_path: Path, *, complete: bool) -> None:
    broker = FlightBroker(tmp_path, pa.schema([("text", pa.string())]))
    told = UpdateMetadata(controller_epoch=1, broker_epoch=0, number=1, partitions=(), brokers={}, complete=complete)
    assert call(broker.client(), UPDATE_METADATA, told, 5_000).notes == (NOTES if complete else None)
    broker.close()
