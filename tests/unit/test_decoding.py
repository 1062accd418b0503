"""Values are decoded by many threads at one time, whose first ones meet a type together."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: before types were met by one thread at a time it ended by SIGSEGV, each time.
TOGETHER = """
import sys
import threading
from typing import Annotated

import msgspec

from spark_replication.decoding import from_builtins, from_json, from_msgpack

sys.setswitchinterval(1e-6)


def new_type(number):
    fields = [(f"field{place}", "Annotated[int, msgspec.Meta(ge=0)] | None", None) for place in range(20)]
    inner = msgspec.defstruct(f"Inner{number}", fields, namespace={"__module__": "__main__"})
    globals()[inner.__name__] = inner
    outer = [("by_name", f"dict[str, Inner{number}]"), ("listed", f"tuple[Inner{number}, ...]")]
    return msgspec.defstruct(f"Outer{number}", outer, namespace={"__module__": "__main__"})


def meet(kind, place, barrier, found):
    value = {"by_name": {"one": {"field1": 1}}, "listed": [{"field2": 2}]}
    barrier.wait()
    if place % 3 == 0:
        found.append(from_json(msgspec.json.encode(value), kind))
    elif place % 3 == 1:
        found.append(from_msgpack(msgspec.msgpack.encode(value), kind))
    else:
        found.append(from_builtins(value, kind))


for number in range(40):
    kind, barrier, found = new_type(number), threading.Barrier(9), []
    threads = [threading.Thread(target=meet, args=(kind, place, barrier, found)) for place in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 9 and len({msgspec.json.encode(each) for each in found}) == 1, found
"""


def test_a_type_may_be_met_by_many_threads_at_once() -> None:
    ran = subprocess.run([sys.executable, "-c", TOGETHER], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
