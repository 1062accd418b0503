"""A slow and lossy cable: `python -m tests.hosts.slow_link NEAR FAR DELAY_MS LOSS_PERCENT SEED`.

A process between two network devices of its own, since not every kernel has netem. It ends with its parent.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

from tests.hosts.bed import TUN

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES_MAX = 65_536
FRAMES_AT_ONCE = 64
WAITING_MAX = 20_000  # beyond them frames are lost, as on a real one


def device(name: str) -> int:
    found = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(found, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return found


class Cable:
    def __init__(self, near: int, far: int, *, delay_s: float, loss: float, chance: random.Random) -> None:
        self._other_end = {near: far, far: near}
        self._delay_s = delay_s
        self._loss = loss
        self._chance = chance
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def relay(self) -> None:
        while True:
            now = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now:
                _, _, end, frame = heapq.heappop(self._waiting)
                _write(end, frame)
            timeout = max(0.0, self._waiting[0][0] - now) if self._waiting else None
            ready, _, _ = select.select(list(self._other_end), [], [], timeout)
            for end in ready:
                self._take(end)

    def _take(self, end: int) -> None:
        due = time.monotonic() + self._delay_s
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame = os.read(end, FRAME_BYTES_MAX)
            except OSError:  # nothing more, or the device is not up
                return
            if len(self._waiting) < WAITING_MAX and self._chance.random() >= self._loss:
                self._count += 1
                heapq.heappush(self._waiting, (due, self._count, self._other_end[end], frame))


def _write(end: int, frame: bytes) -> None:
    try:
        os.write(end, frame)
    except OSError:  # full, or not up: lost
        return


def main() -> None:
    near, far, delay_ms, loss_percent, seed = sys.argv[1:]
    cable = Cable(
        device(near),
        device(far),
        delay_s=int(delay_ms) / 1_000,
        loss=float(loss_percent) / 100,
        chance=random.Random(int(seed)),
    )
    sys.stdout.write("relays\n")
    sys.stdout.flush()
    cable.relay()


if __name__ == "__main__":
    main()
