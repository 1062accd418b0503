"""The cell of each partition of a cluster in a grid, so that 200 can be read, and 10,000 be seen at once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from spark_replication.admin.notebook.frames import CONDITIONS, condition_of
from spark_replication.client.descriptions import PartitionDescription, TopicDescription

#: If there are more partitions, the worst have a cell.
CELLS_MAX = 20_000
#: If there are more topics, they follow each other without a line of their own.
NAMED_TOPICS_MAX = 40

# (up to so many cells, cells in a row, pixels of each)
_SIZES = ((250, 25, 26), (2_500, 50, 14), (CELLS_MAX, 100, 8))
READABLE_PX = 26


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: PartitionDescription
    condition: str
    row: int
    column: int


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    cells: tuple[Cell, ...]
    #: The topic that begins in each row; empty if there are too many topics.
    topics: dict[int, str]
    rows: int
    columns: int
    cell_px: int
    #: How many partitions have each condition, with or without a cell.
    counts: dict[str, int]


def grid_of(topics: Sequence[TopicDescription]) -> Grid:
    found = [(topic.name, each, condition_of(each)) for topic in topics for each in topic.partitions]
    counts = dict.fromkeys(CONDITIONS, 0)
    for _, _, condition in found:
        counts[condition] += 1
    if len(found) > CELLS_MAX:
        worst = sorted(range(len(found)), key=lambda place: CONDITIONS.index(found[place][2]))[:CELLS_MAX]
        found = [found[place] for place in sorted(worst)]
    _, columns, cell_px = next(size for size in _SIZES if len(found) <= size[0])
    is_named = len({name for name, _, _ in found}) <= NAMED_TOPICS_MAX
    cells: list[Cell] = []
    named: dict[int, str] = {}
    row, column = 0, -1
    for topic, partition, condition in found:
        column += 1
        is_new = is_named and (not cells or cells[-1].topic != topic)
        if column == columns or (is_new and cells):
            row, column = row + 1, 0
        if is_new:
            named[row] = topic
        cells.append(Cell(topic=topic, partition=partition, condition=condition, row=row, column=column))
    return Grid(cells=tuple(cells), topics=named, rows=row + 1, columns=columns, cell_px=cell_px, counts=counts)
