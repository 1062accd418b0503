"""A reader that reads again and again, at the rate that it was given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from spark_replication.admin.bench import rereading

ROWS, ROW_BYTES = 1_000_000, 1_000


class _Endless:
    """A reader that has a large batch at once, for ever."""

    def __init__(self, bootstrap: str) -> None: ...

    def read(self, *_: object) -> Iterator[object]:
        while True:
            yield SimpleNamespace(batch=SimpleNamespace(num_rows=ROWS))

    def close(self) -> None: ...


class _Ended(threading.Event):
    """It is so at the third look. Nobody waits for as long as was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits_s.append(timeout)
        if len(self.waits_s) == 3:
            self.set()
        return self.is_set()


@pytest.mark.parametrize(("mb_per_s", "waits_s"), [(50, [20.0, 40.0, 60.0]), (0, [0.0, 0.0, 0.0])])
def test_it_waits_for_its_rate(monkeypatch: pytest.MonkeyPatch, mb_per_s: int, waits_s: list[float]) -> None:
    monkeypatch.setattr(rereading, "Reader", _Endless)
    begun, ended = threading.Event(), _Ended()
    work = rereading.Work(bootstrap="", topic="orders", partitions=1, row_bytes=ROW_BYTES, mb_per_s=mb_per_s)
    done = rereading.reread(work, begun, ended)
    assert begun.is_set()
    assert done.bytes == 3 * ROWS * ROW_BYTES
    assert ended.waits_s == pytest.approx(waits_s, rel=0.25)
