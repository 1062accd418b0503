"""Each type that a topic may have is either in its table as it was, or refused before there is a table (TB8)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_replication.errors import InvalidSchema
from spark_replication.process.threads import now_ms
from spark_replication.storage.format.batches import stored_schema
from spark_replication.tables.delta_table import DeltaTopicTable, TableOwner
from spark_replication.tables.joining import join
from spark_replication.tables.parquet_files import StoredRows
from spark_replication.tables.types import OURS, fitted, table_schema
from tests.unit.storage.every_type import TOPICS, Sample
from tests.unit.tables.table_stories import FILE_BYTES, contents, rows, uploads

OWNER = TableOwner(cluster_id="ours", topic="orders", topic_id="first")
REFUSED = {
    "null", "halffloat", "decimal256(50, 2)", "timestamp[ns]", "time32[s]", "time64[us]", "duration[ms]",
    "month_day_nano_interval", "list_view<item: int32>", "large_list_view<item: string>", "sparse_union", "dense_union",
    "run_end_encoded", "uuid", "bool8", "json", "opaque", "tensor",
}  # fmt: skip
# The dictionaries of a batch are messages of their own; a topic stores their values.
KEPT = [each for each in TOPICS if each.name not in REFUSED and each.name != "dictionary"]


@pytest.mark.parametrize("sample", [each for each in TOPICS if each.name in REFUSED], ids=lambda sample: sample.name)
def test_a_type_that_is_refused(sample: Sample) -> None:
    with pytest.raises(InvalidSchema, match="which a Delta table cannot hold: cast it to"):
        table_schema(stored_schema(sample.schema))


@pytest.mark.parametrize("sample", KEPT, ids=lambda sample: sample.name)
def test_a_type_that_is_kept(sample: Sample, tmp_path: Path) -> None:
    schema = stored_schema(sample.schema)
    wanted = table_schema(schema)
    sent = pa.ipc.read_record_batch(pa.py_buffer(sample.message), sample.schema)
    table = DeltaTopicTable(str(tmp_path / "orders"), OWNER, schema, now_ms=now_ms)
    for start in (0, 3):
        files = uploads(table, [StoredRows(0, start, 0, 0, sent)])
        assert json.loads(files[0].statistics)["numRecords"] == 3
        table.commit(table.load(), [rows(0, start, start + 3)], files)
    columns = fitted(sent, wanted)
    expected = 2 * pa.record_batch(columns, pa.schema([f for f in wanted if f.name not in OURS.names])).to_pylist()
    for _ in range(2):
        assert [{name: row[name] for name in schema.names} for row in contents(table)] == expected
        join(table.folder, OWNER, FILE_BYTES, now_ms, 2)
    for before, after in zip(sent.columns, columns, strict=True):
        assert pc.sum(before.is_null()) == pc.sum(after.is_null())
