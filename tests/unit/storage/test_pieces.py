"""Where a range of a log is cut: between stored batches, into pieces of about so many bytes."""

from __future__ import annotations

import numpy as np
import pytest

from spark_replication.messages.ranges import Piece
from spark_replication.storage.format import pieces
from spark_replication.storage.format.pieces import cut
from tests.unit.storage.storage_stories import Open, prepared

# Of four batches: 10 rows each.
ENDS, SIZES = [10, 20, 30, 40], [100, 100, 300, 100]


def told(found: tuple[Piece, ...]) -> list[tuple[int, int]]:
    return [(piece.end, piece.bytes) for piece in found]


@pytest.mark.parametrize(
    ("piece_bytes", "expected"),
    [
        (1, [(10, 100), (20, 100), (30, 300), (40, 100)]),
        (150, [(10, 100), (20, 100), (40, 400)]),
        (200, [(20, 200), (40, 400)]),
        (600, [(40, 600)]),
        (1 << 40, [(40, 600)]),
    ],
)
def test_pieces_end_with_a_batch(piece_bytes: int, expected: list[tuple[int, int]]) -> None:
    halves = [(np.array(ENDS[:2]), np.array(SIZES[:2])), (np.array(ENDS[2:]), np.array(SIZES[2:]))]
    assert told(cut(halves, 40, piece_bytes)) == expected


def test_the_last_piece_ends_where_the_range_does() -> None:
    assert told(cut([(np.array(ENDS), np.array(SIZES))], 35, 100)) == [(10, 100), (20, 100), (30, 300), (35, 100)]


def test_nothing_is_in_no_piece() -> None:
    assert cut([], 40, 100) == ()


def test_there_are_not_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECES_MAX", 2)
    assert told(cut([(np.array(ENDS), np.array(SIZES))], 40, 1)) == [(20, 200), (40, 400)]


def test_a_logs_pieces_are_the_same_whatever_its_segments(open_log: Open) -> None:
    log = open_log(segment_bytes=1_000)
    log.begin_epoch(0)
    for _ in range(20):
        log.append(prepared(log.log_end, 2), leader_epoch=0, timestamp_ms=1)
    assert len(log.segments()) > 2
    whole = log.pieces(0, 40, 1)
    assert [piece.end for piece in whole] == list(range(2, 41, 2))
    assert log.pieces(5, 9, 1) == (*(replace_end(whole[place], end) for place, end in ((2, 6), (3, 8), (4, 9))),)
    (everything,) = log.pieces(0, 40, 1 << 30)
    assert everything == Piece(end=40, bytes=sum(piece.bytes for piece in whole))


def replace_end(piece: Piece, end: int) -> Piece:
    return Piece(end=end, bytes=piece.bytes)
