"""Seeded malformed bytes: what a peer that is broken, foreign or ill-willed may send."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

WORDS = (0, 1, -1, 4, 64, 127, 1 << 15, 1 << 20, -(1 << 31), (1 << 31) - 1)


def garbage(rng: random.Random, bytes_max: int = 200) -> bytes:
    return rng.randbytes(rng.randrange(bytes_max + 1))


def damaged(rng: random.Random, sound: bytes) -> bytes:
    """Some of its bytes are others, or it is longer, or shorter: never the same."""
    data = bytearray(sound)
    while bytes(data) == sound:
        kind = rng.randrange(4)
        if kind == 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            place = rng.randrange(max(1, len(data) - 4))
            data[place : place + 4] = struct.pack("<i", rng.choice(WORDS))
        elif kind == 2:
            del data[rng.randrange(len(data)) :]
        else:
            place = rng.randrange(len(data))
            data[place:place] = garbage(rng, 20)
    return bytes(data)


def any_of(rng: random.Random, sound: Sequence[bytes]) -> bytes:
    """Damaged, or garbage from its first byte."""
    return garbage(rng) if rng.random() < 0.2 else damaged(rng, rng.choice(sound))
