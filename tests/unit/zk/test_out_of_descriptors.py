"""A process without descriptors opens no session with ZooKeeper, says so, and opens one later.

In a process of its own: descriptors are the process's, and other tests have threads in this one.
"""

from __future__ import annotations

import subprocess
import sys

ASKED = """
import os, resource
from contextlib import suppress
from spark_replication.errors import BrokerNotAvailable
from spark_replication.zk.session import Session

def say():
    try:
        Session.connect("127.0.0.1:1", "/x", session_timeout_ms=400, request_timeout_ms=400)
    except BrokerNotAvailable as error:
        print(error)

say()
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
taken = []
with suppress(OSError):
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
say()
for each in taken:
    os.close(each)
say()
"""


def test_without_descriptors_a_session_is_refused_as_one_that_may_be_tried_again() -> None:
    said = subprocess.run([sys.executable, "-c", ASKED], check=False, capture_output=True, text=True, timeout=60)
    before, without, after = said.stdout.splitlines() or [said.stderr] * 3
    assert "no ZooKeeper answers at 127.0.0.1:1" in before
    assert "this process can open no session with ZooKeeper at 127.0.0.1:1 ([Errno 24] Too many open files)" in without
    assert "ulimit -n" in without
    assert after == before
