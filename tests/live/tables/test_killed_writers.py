"""Writers of one table that are killed, and stopped and woken up, at any moment: each row is there once."""

from __future__ import annotations

import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_replication.process.threads import now_ms
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.joining import join
from spark_replication.tables.replacing import files_in
from spark_replication.tables.table_log import files_of
from spark_replication.tables.upkeep import TableUpkeep, UpkeepRules
from spark_replication.tables.verifying import faults_of
from tests.contract.topic_table_cast import OWNER, OfDelta
from tests.live.tables.racing_writer import SHARED
from tests.unit.tables.table_stories import data_files

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

WRITERS = 3
ENOUGH_COMMITS = 30
FILE_BYTES = 8 << 20
DEADLINE_S = 120.0
LONGEST_S = 1.5  # to which a writer is left alone; it takes half of that to begin


def begun(uri: str, number: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.live.tables.racing_writer", uri, str(number), "1000000"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def test_writers_that_are_killed_and_stopped_at_any_moment(tmp_path: Path) -> None:
    seed = secrets.randbelow(1 << 32)
    sys.stdout.write(f"seed={seed}\n")
    rng = random.Random(seed)
    uri = str(tmp_path / "orders")
    table = OfDelta(uri).handle()
    writers = [begun(uri, number) for number in range(1, WRITERS + 1)]
    stopped: set[int] = set()
    until = time.monotonic() + DEADLINE_S
    try:
        while (table.load().number or 0) < ENOUGH_COMMITS and time.monotonic() < until:
            chosen = rng.randrange(WRITERS)
            try:
                writers[chosen].wait(rng.uniform(0, LONGEST_S))
            except subprocess.TimeoutExpired:
                if chosen in stopped:
                    writers[chosen].send_signal(signal.SIGCONT)
                    stopped.discard(chosen)
                elif rng.random() < 0.5:
                    writers[chosen].send_signal(signal.SIGSTOP)
                    stopped.add(chosen)
                else:
                    writers[chosen].kill()
                    writers[chosen].wait(DEADLINE_S)
                    writers[chosen] = begun(uri, chosen + 1)
            if rng.random() < 0.2:
                join(TableFolder(uri), OWNER, FILE_BYTES, now_ms, 4)
                TableUpkeep(TableFolder(uri), OWNER, now_ms).tidy(UpkeepRules(file_bytes=FILE_BYTES))
    finally:
        for writer in writers:
            writer.kill()
            writer.wait(DEADLINE_S)
    version = table.load()
    assert (version.number or 0) >= ENOUGH_COMMITS
    opened = table.opened()
    assert opened is not None
    assert faults_of(opened, version) == []
    expected = sorted((partition, at) for partition, end in version.ends.items() for at in range(end))
    assert OfDelta(uri).rows() == expected
    assert version.ends[SHARED] == sum(end for partition, end in version.ends.items() if partition != SHARED)
    TableUpkeep(TableFolder(uri), OWNER, now_ms).sweep(swept_age_ms=-60_000)
    opened = table.opened()
    assert opened is not None
    assert (
        {file.path for file in files_in(opened)} <= data_files(uri) <= set(files_of(TableFolder(uri), opened.version()))
    )
    assert OfDelta(uri).rows() == expected
