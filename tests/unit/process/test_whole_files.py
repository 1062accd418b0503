"""A file that is read while it is written."""

from __future__ import annotations

import threading
from pathlib import Path

from spark_replication.process.whole_files import replace_text

CHARACTERS = 1 << 20


def test_whoever_reads_meanwhile_has_what_was_or_what_is(tmp_path: Path) -> None:
    path = tmp_path / "told"
    replace_text(path, "0" * CHARACTERS)

    def write() -> None:
        for number in range(1, 10):
            replace_text(path, str(number) * CHARACTERS)

    writing = threading.Thread(target=write)
    writing.start()
    while writing.is_alive():
        found = path.read_text()
        assert len(found) == CHARACTERS
        assert len(set(found)) == 1
    writing.join()
    assert path.read_text() == "9" * CHARACTERS
    assert [each.name for each in tmp_path.iterdir()] == ["told"]
