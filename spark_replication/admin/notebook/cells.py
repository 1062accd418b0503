"""The cell of each partition of a cluster in a grid, so that 200 can be read, and 10,000 be seen at once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from spark_replication.client.asking.descriptions import PartitionDescription, TopicDescription
from spark_replication.view.conditions import WORDS, Condition, conditions_of

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
    #: The worst that holds.
    condition: Condition
    row: int
    column: int


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    cells: tuple[Cell, ...]
    #: The topic that begins in each row; empty if there are too many topics.
    topics: dict[int, str]
    rows: int
    columns: int
    cell_px: int
    partitions: int
    #: Of how many partitions each condition holds, with or without a cell.
    counts: dict[Condition, int]


def grid_of(topics: Sequence[TopicDescription]) -> Grid:
    counts = dict.fromkeys(WORDS, 0)
    found: list[tuple[str, PartitionDescription, Condition]] = []
    for topic in topics:
        for partition in topic.partitions:
            conditions = conditions_of(partition)
            found.append((topic.name, partition, conditions[0]))
            for each in conditions:
                counts[each] += 1
    partitions = len(found)
    if partitions > CELLS_MAX:
        rank = {condition: place for place, condition in enumerate(WORDS)}
        worst = sorted(range(len(found)), key=lambda place: rank[found[place][2]])[:CELLS_MAX]
        found = [found[place] for place in sorted(worst)]
    _, columns, cell_px = next(size for size in _SIZES if len(found) <= size[0])
    is_named = len({name for name, _, _ in found}) <= NAMED_TOPICS_MAX
    cells: list[Cell] = []
    named: dict[int, str] = {}
    row, column = 0, -1
    for name, partition, condition in found:
        column += 1
        is_new = is_named and (not cells or cells[-1].topic != name)
        if column == columns or (is_new and cells):
            row, column = row + 1, 0
        if is_new:
            named[row] = name
        cells.append(Cell(topic=name, partition=partition, condition=condition, row=row, column=column))
    return Grid(
        cells=tuple(cells),
        topics=named,
        rows=row + 1,
        columns=columns,
        cell_px=cell_px,
        partitions=partitions,
        counts=counts,
    )
