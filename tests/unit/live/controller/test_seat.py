"""Where a driver sits: one at a time, and it is free as soon as its process has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from spark_replication.live.controller.seat import Seat

SITS = """
import sys
from pathlib import Path
from spark_replication.live.controller.seat import Seat
print(Seat(Path(sys.argv[1])).take().directory_mark, flush=True)
sys.stdin.read()
"""


def test_one_sits_there_at_a_time_and_a_killed_one_no_longer(tmp_path: Path) -> None:
    seat = Seat(tmp_path / "driver")
    other = subprocess.Popen(
        [sys.executable, "-c", SITS, str(tmp_path / "driver")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with other:
        assert other.stdout is not None
        mark = other.stdout.readline().decode().strip()
        assert (seat.take(), seat.became_free()) == (None, False)
        other.kill()
        other.wait()
        assert seat.became_free()
    held = seat.take()
    assert held is not None
    assert (held.directory_mark, seat.take(), seat.became_free()) == (mark, held, False)
    seat.leave()
    seat.leave()
    assert Seat(tmp_path / "driver").take() == held


def test_directories_differ(tmp_path: Path) -> None:
    assert Seat(tmp_path / "a").take() != Seat(tmp_path / "b").take()
