"""How a program goes on beside a measurement: it prints `ready` once it has begun, and ends when its input does. Then
it prints what it has done."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import msgspec

from spark_replication.admin.bench.producing import Done

#: Sets the first event once it has begun, and returns soon after the second one is set.
Lasting = Callable[[threading.Event, threading.Event], Done]


def last(does: Lasting) -> None:
    begun, ended = threading.Event(), threading.Event()
    threading.Thread(target=_talk, args=(begun, ended), daemon=True).start()
    sys.stdout.write(msgspec.json.encode(does(begun, ended)).decode() + "\n")


def _talk(begun: threading.Event, ended: threading.Event) -> None:
    begun.wait()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    ended.set()
