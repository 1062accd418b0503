"""Whose status counts, and up to where all that was told is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from spark_replication.core.controller.news import News
from spark_replication.mirror.delta.delta_file import DeltaFile
from spark_replication.mirror.tables.status import STATUS, StatusRow
from spark_replication.mirror.telling.latest_rows import LatestRows
from spark_replication.model import TopicPartition
from tests.live.mirror.mirror_stories import CLUSTER, changed, command, everything

FIRST = StatusRow(
    cluster_id=CLUSTER,
    controller="127.0.0.1:9000",
    controller_epoch=4,
    zxid=20,
    event=7,
    as_of_ms=1_000,
    lag_ms=0,
    heartbeat_ms=10_000,
    problems=("broker 3 is not registered",),
)


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (r := replace(FIRST, as_of_ms=2_000, zxid=21), r),
        (r := replace(FIRST, controller_epoch=5, as_of_ms=1), r),  # clocks of two hosts may differ
        (r := replace(FIRST, as_of_ms=999, zxid=30), r),  # a clock that was set back stops nobody
        (replace(FIRST, controller_epoch=3, as_of_ms=9_000, zxid=30), FIRST),
    ],
)
def test_the_newest_controllers_newest_word_counts(told: StatusRow, kept: StatusRow, tmp_path: Path) -> None:
    file = DeltaFile(STATUS, str(tmp_path / "status"), CLUSTER)
    for row in (FIRST, told):
        rows = STATUS.rows([row], [])
        file.merge(lambda _opened, rows=rows: rows)  # type: ignore[misc]
    assert DeltaTable(str(tmp_path / "status")).to_pyarrow_table().to_pylist() == STATUS.rows([kept], []).to_pylist()


def test_all_is_written_up_to_the_highest_that_was_told_before_the_write() -> None:
    rows = LatestRows(CLUSTER, 1)
    assert rows.written_zxid == -1
    rows.tell(everything(20, (command("orders", 0), 10)), 100)
    rows.take()
    rows.tell(changed((command("orders", 1), 25)), 200)
    rows.written(is_behind=False)
    assert rows.written_zxid == 20
    rows.take()
    rows.failed()
    assert rows.written_zxid == 20
    rows.tell(News(removed=((TopicPartition("orders", 0), 31),), deleted=(("payments", 30),)), 300)
    rows.take()
    rows.written(is_behind=False)
    assert rows.written_zxid == 31
