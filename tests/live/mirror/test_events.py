"""What happened, in a table of its own: each thing once and in order, whichever controller tells of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_replication.core.controller.news import News
from spark_replication.core.controller.origin import Origin
from spark_replication.errors import RequestTimedOut, StorageFailed
from spark_replication.mirror.asking.load import read_events, read_partitions, read_status
from spark_replication.mirror.delta.delta_file import DeltaFile
from spark_replication.mirror.delta.reading import is_one_of
from spark_replication.mirror.telling.feed import MirrorThread, Teller
from tests.live.mirror.mirror_stories import CLUSTER, DEADLINE_S, changed, command, everything, thread, wait_for

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

DIED = Origin("4.9", "brokers", "broker 1 gone")
ASKED = Origin("4.10", "request", "elect leaders (preferred) of orders-3: asked by 127.0.0.1", is_fact=True)

Start = Callable[[int], MirrorThread]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "mirror")


@pytest.fixture
def start(path: str) -> Iterator[Start]:
    """start(epoch): the mirror of a controller of that epoch."""
    started: list[MirrorThread] = []

    def starter(epoch: int) -> MirrorThread:
        started.append(thread(path, Teller(CLUSTER, epoch, "127.0.0.1:9000"), heartbeat_ms=100))
        return started[-1]

    yield starter
    for mirror in started:
        mirror.close()


def chain(path: str, topic: str = "orders") -> list[tuple[str, int | None, int | None]]:
    """kind, and the leader epoch before and after. Each begins where the one before it ended."""
    rows = read_events(path, is_one_of("topic", [topic])).to_pylist()
    faces = [(row["was"], row["became"]) for row in rows]
    assert [was for was, _ in faces] == [None, *(became for _, became in faces[:-1])]
    return [(row["kind"], _epoch(row["was"]), _epoch(row["became"])) for row in rows]


def _epoch(face: str | None) -> int | None:
    return None if face is None else json.loads(face)["leader_epoch"]


def fails_once(monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    """As when the process dies before it has written this table."""
    merge, left = DeltaFile.merge, [1]

    def failing(file: DeltaFile[Any], *told: Any, **named: Any) -> None:
        if file.uri.endswith(table) and left:
            left.pop()
            raise StorageFailed(f"{table}: no space left on device")
        merge(file, *told, **named)

    monkeypatch.setattr(DeltaFile, "merge", failing)


def test_all_that_happened_is_told_though_rows_are_coalesced(path: str, start: Start) -> None:
    mirror = start(4)
    mirror.tell(everything(20, (command("orders"), 10)))
    for epoch in range(1, 20):
        news = changed((command("orders", leader=1 + epoch % 2, leader_epoch=epoch), 20 + epoch))
        mirror.tell(News(partitions=news.partitions, origin=DIED))
    mirror.tell(News(origin=ASKED, begins=True, zxid=40, refused="refused: ELECTION_NOT_NEEDED"))
    mirror.flush(DEADLINE_S)
    assert chain(path) == [("created", None, 0), *(("elected", epoch - 1, epoch) for epoch in range(1, 20))]
    (*_, last, asked) = read_events(path).to_pylist()
    assert (last["cause"], last["because"], last["leader"], last["leader_epoch"]) == ("4.9", "broker 1 gone", 2, 19)
    assert (asked["kind"], asked["because"], asked["why"]) == ("request", ASKED.words, "refused: ELECTION_NOT_NEEDED")
    assert read_partitions(path)["leader_epoch"].to_pylist() == [19]


def test_a_write_that_fails_half_way_tells_nothing_twice(
    path: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the events it was all written, of the rows nothing."""
    mirror = start(4)
    mirror.tell(everything(20, (command("orders"), 10)))
    mirror.flush(DEADLINE_S)
    fails_once(monkeypatch, "partitions")
    mirror.tell(changed((command("orders", leader_epoch=1), 21)))
    wait_for(lambda: mirror.error is not None)
    assert mirror.lag_ms() > 0
    mirror.tell(changed((command("orders", leader_epoch=2), 22)))
    mirror.flush(DEADLINE_S)
    assert chain(path) == [("created", None, 0), ("elected", 0, 1), ("elected", 1, 2)]


def test_a_successor_takes_the_chain_up_at_what_is_told_and_not_shown(
    path: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first dies after its events and before its rows; meanwhile more happens that nobody tells of."""
    first = start(4)
    first.tell(everything(20, (command("orders"), 10), (command("payments"), 11), (command("clicks"), 12)))
    first.flush(DEADLINE_S)
    monkeypatch.setattr(DeltaFile, "merge", _refuses)
    first.tell(changed((command("orders", leader_epoch=1), 21)))
    wait_for(lambda: len(chain(path)) == 2)
    monkeypatch.undo()
    second = start(5)
    second.tell(everything(30, (command("orders", leader_epoch=3), 25), (command("payments"), 11)))
    second.flush(DEADLINE_S)
    assert chain(path) == [("created", None, 0), ("elected", 0, 1), ("elected", 1, 3)]
    assert chain(path, "payments") == [("created", None, 0)]
    wait_for(lambda: len(chain(path, "clicks")) == 2)
    assert chain(path, "clicks") == [("created", None, 0), ("removed", 0, None)]
    wait_for(lambda: read_status(path)["event"].to_pylist() == read_events(path)["number"].to_pylist()[-1:])

    first.tell(changed((command("orders", leader_epoch=9), 99)))
    with pytest.raises(RequestTimedOut, match="written by the controller of epoch 5"):
        first.flush(3)
    assert len(chain(path)) == 3
    assert sorted(read_partitions(path)["leader_epoch"].to_pylist()) == [0, 3]


def _refuses(file: DeltaFile[Any], *_told: Any, **_named: Any) -> None:
    raise StorageFailed(f"{file.uri}: no space left on device")


def test_what_was_there_before_events_were_is_not_told_as_new(path: str, start: Start) -> None:
    """Somebody removes the table, or an earlier release did not write it."""
    first = start(4)
    first.tell(everything(20, (command("orders"), 10)))
    first.flush(DEADLINE_S)
    first.close()
    for file in sorted(Path(path, "events").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    second = start(5)
    second.tell(everything(30, (command("orders"), 10)))
    second.tell(changed((command("orders", leader_epoch=1), 31)))
    second.flush(DEADLINE_S)
    assert [(row["kind"], _epoch(row["was"])) for row in read_events(path).to_pylist()] == [("elected", 0)]
