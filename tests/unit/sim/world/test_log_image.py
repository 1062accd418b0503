"""What checkers see of a replica's files, also while a process that was killed has left more than a log there."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from spark_replication.sim.world.disk import LogImage
from spark_replication.sim.world.faulty_files import FaultyFiles, Folder
from spark_replication.sim.world.world import Killed
from spark_replication.storage.log.partition_log import PartitionLog
from spark_replication.storage.log.segment_files import DATA
from tests.unit.storage.storage_stories import log_in, prepared

FOLDER = Path("orders-0.id")


def seen() -> tuple[FaultyFiles, PartitionLog, LogImage]:
    """A log of five batches, two in a segment, and what is seen of it."""
    files = FaultyFiles()
    files.make_folder(FOLDER)
    log = log_in(FOLDER, files=files, segment_bytes=600)
    log.begin_epoch(0)
    for _ in range(5):
        log.append(prepared(log.log_end, 1), leader_epoch=0, timestamp_ms=0)
    folder = files.root.names[str(FOLDER)]
    assert isinstance(folder, Folder)
    image = LogImage(files, FOLDER, folder)
    image.refresh()
    return files, log, image


@pytest.mark.parametrize("offset", [1, 3, 4])
def test_a_log_that_is_to_start_elsewhere_is_seen_as_before_or_after(offset: int) -> None:
    starts = set()
    for changes in count():
        files, log, image = seen()
        records = image.records
        assert [segment.base for segment in log.segments()] == [0, 2, 4]
        files.dies_in = changes
        with suppress(Killed):
            log.drop_below(offset)
        image.refresh()
        starts.add(image.start)
        assert image.records == records[image.start :]
        if files.dies_in is not None:
            break
    assert starts == {0, offset}


@pytest.mark.parametrize(("bytes_changed", "kept"), [(1, 2), (2, 0)])
def test_a_batch_that_has_rotted_is_there_still_and_so_is_its_copy(bytes_changed: int, kept: int) -> None:
    """But what a torn write has left is not: that is more than a byte."""
    files, log, image = seen()
    records = image.records
    path = FOLDER / f"{2:020}{DATA}"
    size = files.size(path)
    assert size is not None
    for before_end in range(1, bytes_changed + 1):
        files.rot(path, size - before_end)
    image.refresh()
    assert image.records == records, "nobody has looked"
    log.drop_below(3)
    image.refresh()
    assert (image.start, image.records) == (3, records[3 : 3 + kept])
