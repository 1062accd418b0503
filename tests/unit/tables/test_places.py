"""Where tables lie, and by what they are partitioned: tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.config import Settings, settings_from
from spark_replication.errors import InvalidConfig
from spark_replication.mirror.delta.object_store import PATIENCE
from spark_replication.tables.places import partition_columns, read_table_options, table_uri, tables_path


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("s3a://lake/topics/", "s3a://lake/topics/orders"),
        ("/var/lake", "/var/lake/orders"),
        ("lake", str(Path("lake/orders").absolute())),
        ("", str(Path(".data/tables/orders").absolute())),
    ],
)
def test_a_table_lies_in_a_folder_of_its_topics_name(path: str, uri: str) -> None:
    assert table_uri(tables_path(settings_from({"table.path": path})), "orders") == uri


def test_without_a_path_they_lie_beside_the_clusters_data(tmp_path: Path) -> None:
    assert tables_path(Settings(), tmp_path) == str(tmp_path / "tables")


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", ()), (" , ", ()), ("_day", ("_day",)), ("region, kind ,_day", ("region", "kind", "_day")), ("a,a", ("a",))],
)
def test_by_which_columns_a_table_is_partitioned(text: str, columns: tuple[str, ...]) -> None:
    assert partition_columns(text) == columns


def test_what_opens_the_store_is_in_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "store.toml"
    file.touch(0o600)
    file.write_text("aws_region = 'x'")
    given = {"table.storage.file": str(file)}
    assert read_table_options(settings_from({**given, "table.path": "s3a://lake"})) == {**PATIENCE, "aws_region": "x"}
    assert read_table_options(Settings()) == PATIENCE
    with pytest.raises(
        InvalidConfig, match=r"table\.storage\.file is set, and table\.path=/lake names no object store"
    ):
        read_table_options(settings_from({**given, "table.path": "/lake"}))
