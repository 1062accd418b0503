"""What a stream of orders tells while it runs. Without Spark."""

from __future__ import annotations

import json
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from spark_replication.admin.jobs.order_pipeline import OrderStream


class Query:
    """Of Spark: `ends` says of each look whether it has ended, `progress` what it has told by then."""

    def __init__(self, *looks: tuple[bool, list[dict[str, Any]]]) -> None:
        self._looks = list(looks)
        self.recentProgress: list[SimpleNamespace] = []

    def awaitTermination(self, _seconds: int) -> bool:  # noqa: N802 (Spark's name)
        has_ended, told = self._looks.pop(0)
        self.recentProgress += [SimpleNamespace(json=json.dumps(each)) for each in told]
        return has_ended

    def stop(self) -> None: ...


def progress(batch: int, rows: int, behind: dict[str, int] | None) -> dict[str, Any]:
    return {"batchId": batch, "numInputRows": rows, "sources": [{"latestOffset": {"behind": behind}}]}


def told_by(query: Query, *, stopped: bool = False) -> list[tuple[int, int | None]]:
    stream = OrderStream.__new__(OrderStream)
    stream._query, stream._read = query, 0  # type: ignore[assignment]
    told: list[tuple[int, int | None]] = []
    stopping = Event()
    if stopped:
        stopping.set()
    stream.run(stopping, lambda rows, behind: told.append((rows, behind)))
    return told


def test_nobody_knows_how_far_a_stream_is_behind_before_it_has_told() -> None:
    query = Query((False, []), (False, [progress(0, 10, {"0": 5, "1": 3})]), (True, [progress(1, 8, {"0": 0, "1": 0})]))
    assert told_by(query) == [(0, None), (10, 8), (18, 0)]


@pytest.mark.parametrize(("stopped", "behind"), [(False, 0), (True, None)])
def test_one_that_ends_without_a_micro_batch_had_nothing_to_read_unless_it_was_stopped(
    *, stopped: bool, behind: int | None
) -> None:
    query = Query((not stopped, []))
    assert told_by(query, stopped=stopped)[-1] == (0, behind)
