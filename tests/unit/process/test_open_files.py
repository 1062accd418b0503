"""The limits of a process, in a process of its own each: they cannot be raised again."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASKED = """
import resource, sys
from spark_replication.process.files import open_files_max
wanted, soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(open_files_max(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("wanted", "soft", "hard", "found"),
    [
        (7, 256, 1_024, (7, 256)),
        (0, 256, 1_024, (512, 1_024)),
        (0, 1_024, 1_024, (512, 1_024)),
        (0, 256, 4_096, (2_048, 4_096)),
    ],
)
def test_half_of_what_may_be_opened_is_for_logs(wanted: int, soft: int, hard: int, found: tuple[int, int]) -> None:
    command = [sys.executable, "-c", ASKED, *map(str, (wanted, soft, hard))]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert tuple(map(int, said.split())) == found
