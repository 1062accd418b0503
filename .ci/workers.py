"""Prints the workers of `make test`: three, of which one is patient (tests/conftest.py) where processes take long to
wake each other.

Spark gives a Python process that plans a stream 10 s to begin, and no setting changes that. On a virtual machine where
a round trip between two idle processes took 18 us, and an acknowledgement of three brokers 3.3 ms in place of 0.8,
three workers with their clusters left such a process too little of two processors. Two left a tenth of them idle.
"""

from __future__ import annotations

import os
import time

ROUNDS = 5_000
SLOW_US = 12.0  # below the one machine that was measured so: 18


def round_trip_us() -> float:
    """How long a byte takes to another process and back."""
    to_other, from_other = os.pipe(), os.pipe()
    other = os.fork()
    if other == 0:
        for _ in range(ROUNDS):
            os.write(from_other[1], os.read(to_other[0], 1))
        os._exit(0)
    began_s = time.perf_counter()
    for _ in range(ROUNDS):
        os.write(to_other[1], b"x")
        os.read(from_other[0], 1)
    took_s = time.perf_counter() - began_s
    os.waitpid(other, 0)
    return took_s / ROUNDS * 1e6


if __name__ == "__main__":
    print("-n 3 --patient --spark-in-turn" if min(round_trip_us() for _ in range(3)) > SLOW_US else "-n 3")
