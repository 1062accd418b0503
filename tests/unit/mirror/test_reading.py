"""Tables are read by delta-rs, whatever their names and values hold, and who has read one may end at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

import spark_replication
from spark_replication.mirror.asking.load import read_events, read_partitions, read_table
from spark_replication.mirror.delta.reading import is_one_of, rows_of
from spark_replication.mirror.tables.partitions import PARTITIONS
from tests.live.mirror.mirror_stories import command, row, write_partitions

PROCESSES = 12
AT_ONCE = 3
PROGRAM = "import sys; from spark_replication.mirror.asking.load import read_partitions; read_partitions(sys.argv[1])"


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_partitions(str(tmp_path), row(command("orders", 0), 10), row(command("orders", 1), 11))
    return str(tmp_path)


def test_columns_are_of_the_types_that_the_table_has(path: str) -> None:
    found = read_table("partitions", path)
    assert found.schema.types == [field.type for field in PARTITIONS.schema]
    assert found.schema.field("leader").metadata == PARTITIONS.schema.field("leader").metadata


def test_a_table_without_rows_has_its_columns(path: str) -> None:
    opened = DeltaTable(PARTITIONS.path(path))
    found = rows_of(opened, ["topic", "partition"], is_one_of("partition", [7]))
    assert (found.num_rows, found.column_names) == (0, ["topic", "partition"])


def test_the_version_that_is_open_is_read(path: str) -> None:
    opened = DeltaTable(PARTITIONS.path(path))
    write_partitions(path, row(command("orders", 2), 12))
    assert rows_of(opened).num_rows == 2
    assert read_partitions(path).num_rows == 3


@pytest.mark.parametrize("value", ["it's", "' OR 1 = 1 --", '"', "\\'", "über", "a\nb"])
def test_a_value_is_only_a_value(tmp_path: Path, value: str) -> None:
    write_deltalake(str(tmp_path), pa.table({"order": [value, "another"], "number": [1, 2]}))
    found = rows_of(DeltaTable(str(tmp_path)), ["number"], is_one_of("order", [value]))
    assert found["number"].to_pylist() == [1]


def test_one_of_several(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"order": ["a", "b", "c"], "number": [1, -2, 3]}))
    opened = DeltaTable(str(tmp_path))
    assert rows_of(opened, ["order"], is_one_of("number", [-2, 3]))["order"].to_pylist() == ["b", "c"]
    assert rows_of(opened, ["number"], is_one_of("order", ["a", "c"]))["number"].to_pylist() == [1, 3]


def test_a_column_that_is_not_there_is_an_error(path: str) -> None:
    with pytest.raises(DeltaError, match="nobody"):
        rows_of(DeltaTable(PARTITIONS.path(path)), ["nobody"])


def test_events_that_nobody_wrote_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeltaError):
        read_events(str(tmp_path))


def test_no_table_is_read_by_threads_of_pyarrow() -> None:
    package = Path(spark_replication.__file__).parent
    reads = re.compile(r"\.to_pyarrow_(table|dataset)\(|DeltaStorageHandler\(")
    found = {str(file.relative_to(package)) for file in package.rglob("*.py") if reads.search(file.read_text())}
    assert found == {"mirror/delta/delta_file.py"}, "which lists files by it"


@pytest.mark.slow
def test_a_process_that_has_read_a_table_may_end_at_once(path: str) -> None:
    """pyarrow's threads, as to_pyarrow_table uses them, abort one in five."""
    for _ in range(PROCESSES // AT_ONCE):
        started = [subprocess.Popen([sys.executable, "-c", PROGRAM, path]) for _ in range(AT_ONCE)]
        assert [process.wait(60) for process in started] == [0] * AT_ONCE
