"""Whether a process that comes last leaves a processor to one of another session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_replication.process.processes import SESSION_NICENESS

PROCESSOR = min(os.sched_getaffinity(0))
BURNED_S = 0.8
# Burns one processor, for so many seconds of its own time.
BURNING = """
import os, sys, time
from spark_replication.process.processes import come_last
processor, niceness, seconds = sys.argv[1:]
os.sched_setaffinity(0, {int(processor)})
if niceness != "0":
    come_last(int(niceness))
print("ready", flush=True)
while time.process_time() < float(seconds):
    pass
"""


def burning(niceness: int, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BURNING, str(PROCESSOR), str(niceness), str(seconds)]
    found = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert found.stdout is not None
    assert found.stdout.readline() == "ready\n"
    return found


def processor_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


@pytest.mark.slow
@pytest.mark.parametrize(("niceness", "least", "most"), [(0, 0.4, 2.5), (19, 0.0, 0.3)], ids=["equal", "last"])
def test_what_comes_last_gets_what_another_session_leaves(niceness: int, least: float, most: float) -> None:
    with burning(niceness, 60.0) as other:
        try:
            with burning(0, BURNED_S) as first:
                others_s, firsts_s = processor_s(other.pid), processor_s(first.pid)
                os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
                got = (processor_s(other.pid) - others_s) / (processor_s(first.pid) - firsts_s)
        finally:
            other.kill()
    assert least <= got <= most


def test_the_session_of_another_process_is_left_as_it_is() -> None:
    if not SESSION_NICENESS.exists():
        pytest.skip("this kernel gives sessions no share of their own")
    before = SESSION_NICENESS.read_text(encoding="ascii")
    story = "from spark_replication.process.processes import come_last; come_last(19); import os; print(os.nice(0))"
    said = subprocess.run([sys.executable, "-c", story], capture_output=True, text=True, check=True).stdout
    assert int(said) >= 19
    assert SESSION_NICENESS.read_text(encoding="ascii") == before
