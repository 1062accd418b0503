"""Idempotent producers: a batch that is sent again is answered with the place it got the first time, and stored once.

`sequence` counts batches, from 0 in each producer epoch. A higher epoch fences the lower ones. The answer to a batch of
producer p, epoch e and sequence s depends on what is remembered of p:

| remembered of p | the batch | answer |
| --- | --- | --- |
| nothing | s = 0 | stored: an unknown producer starts at 0, always |
| nothing, and nobody was ever forgotten here | s > 0 | OUT_OF_ORDER: it is surely not in this log |
| nothing, and somebody may be forgotten | s > 0 | UNKNOWN_PRODUCER_ID: an earlier copy of it may be stored |
| a lower epoch | s = 0 | stored: a new epoch |
| a lower epoch | s > 0 | OUT_OF_ORDER |
| a higher epoch | any | INVALID_PRODUCER_EPOCH: p is fenced |
| e, last at s - 1 | s | stored |
| e, last below s - 1 | s | OUT_OF_ORDER: one is missing |
| e, with s's place and CRC | s, as many rows, the same CRC | that place |
| e, with s's place and digest | s, as many rows, the same digest | that place |
| e, with s's place, but no digest, and p is kept | s, as many rows, with a digest | that place |
| e, with s's place | s, and anything else | INVALID_PRODUCER_EPOCH, maybe_written: it is another batch |
| e, s older than all places | s | INVALID_PRODUCER_EPOCH, maybe_written: stored once, nobody knows where |

Rules:
- What is remembered comes from the log, and outlives it: before retention removes batches, what is known of them is put
  on the disk (`below`). A replica builds its `Producers.of` that file, and of the batches in its index. A follower that
  begins anew at a leader's log start gets the leader's `below` that start, so that replicas know the same producers.
- A producer that was silent for `expire_ms` is forgotten, and beyond `count_max` producers, the one silent longest. The
  clock is the log's own: the timestamps of its batches, which never fall. So replicas forget alike, however wrong their
  clocks are.
- A forgotten producer keeps itself safe: it begins another epoch with batches that it surely never sent, and reports
  those that it has sent before as maybe written (engine.client.window).
- A batch whose rows may come in another order has a digest of them (storage.format.row_digest), which is remembered in
  place of its CRC, and as long. Only of what an older program stored is there none: a kept producer's batch, which a
  stream's sink sent, is recognised by its count then, so that a micro-batch can be repeated after an upgrade.
- `expire_ms` is longer than any producer retries a batch: the first batch of a producer that was forgotten meanwhile
  would be stored a second time.
- A producer with KEPT_PRODUCER in its id never expires: it may send its last batch again after any time, as a query
  does that was stopped for a week. There may be count_max of these beside the others.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import msgspec

from spark_replication.errors import InvalidProducerEpoch, OutOfOrderSequence, UnknownProducerId
from spark_replication.messages.records import KEPT_PRODUCER
from spark_replication.model import Offset

REMEMBERED = 256  # batches of a producer epoch that are recognised when sent again: as many as may be in flight
EPOCHS_REMEMBERED = 8  # of a producer, so that a truncation finds the epoch before
EXPIRE_MS = 24 * 3_600_000
COUNT_MAX = 10_000
BELOW_BYTES_MAX = 512 << 10  # written from the reserve of a full disk (storage.disk.reserve), and sent in one frame

_WORDS = 2  # of a batch: its base offset, and its rows above its CRC or digest
_BATCH_BYTES = 8 * _WORDS
_PRODUCER_BYTES = 36  # of a KnownProducer at most, as msgpack, without its batches
_CRC_BITS = 32
_HAS_DIGEST = 1 << 62  # set in the second word of a batch that has a digest and no CRC


class OffsetSpan(msgspec.Struct, frozen=True):
    base_offset: Offset
    last_offset: Offset


class Newest(NamedTuple):
    """The newest epoch of a producer."""

    epoch: int
    last_sequence: int
    #: Of its newest batches, up to last_sequence. At least one.
    rows: tuple[int, ...]


class KnownProducer(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one producer below some offset."""

    producer: int
    epoch: int
    last_sequence: int
    last_ms: int
    #: Two little-endian words a batch, up to last_sequence.
    batches: bytes


class _Written:
    """One epoch of a producer."""

    __slots__ = ("batches", "before", "epoch", "last_ms", "last_sequence")

    def __init__(self, epoch: int, last_sequence: int, last_ms: int, batches: array[int], before: _Written | None):
        self.epoch = epoch
        self.last_sequence = last_sequence
        self.last_ms = last_ms
        #: Its newest batches, up to last_sequence, without a gap.
        self.batches = batches
        #: An earlier epoch.
        self.before = before

    @property
    def count(self) -> int:
        return len(self.batches) // _WORDS

    def place(self, index: int) -> OffsetSpan:
        base, content = self.batches[index * _WORDS], self.batches[index * _WORDS + 1]
        return OffsetSpan(base, base + ((content & ~_HAS_DIGEST) >> _CRC_BITS) - 1)

    def below(self, end: Offset) -> _Written | None:
        """The same without the batches that reach beyond `end`; None if nothing is left."""
        kept = self.count
        while kept and self.place(kept - 1).last_offset >= end:
            kept -= 1
        if kept == self.count:
            return self
        if not kept:
            return None if self.before is None else self.before.below(end)
        last_sequence = self.last_sequence - (self.count - kept)
        return _Written(self.epoch, last_sequence, self.last_ms, self.batches[: kept * _WORDS], self.before)


class Producers:
    """What each idempotent producer last wrote to one partition; `wrote`, `truncated` and `trimmed` alone change it."""

    def __init__(self, log_start: Offset = 0, *, expire_ms: int = EXPIRE_MS, count_max: int = COUNT_MAX) -> None:
        self.expire_ms = expire_ms
        self.count_max = count_max
        #: The producers; the one that was silent longest comes first.
        self._known: OrderedDict[int, _Written] = OrderedDict()
        #: Those with KEPT_PRODUCER, likewise.
        self._kept: OrderedDict[int, _Written] = OrderedDict()
        self._newest_ms = 0
        #: Whether some producer may have written of which nothing is remembered.
        self._forgotten = log_start > 0

    @classmethod
    def of(cls, known: Iterable[KnownProducer], log_start: Offset, *, expire_ms: int, count_max: int) -> Producers:
        """The producers as known below the log's start. The batches from there on are to follow by `wrote`."""
        producers = cls(log_start, expire_ms=expire_ms, count_max=count_max)
        for each in known:
            batches = array("q", each.batches)
            found = _Written(each.epoch, each.last_sequence, each.last_ms, batches, None).below(log_start)
            if found is not None:
                producers._beside(each.producer)[each.producer] = found
                producers._newest_ms = max(producers._newest_ms, each.last_ms)
        return producers

    def __len__(self) -> int:
        return len(self._known) + len(self._kept)

    def check(
        self, producer: int, epoch: int, sequence: int, *, rows: int, crc: int, digest: int = 0
    ) -> OffsetSpan | None:
        """Check a batch: None if it is the next, its place if it is stored; else raise an error that changes nothing.
        `digest` is 0 if the rows of a batch that is sent again must be in the same order."""
        known = self._beside(producer).get(producer)
        if known is None or epoch > known.epoch:
            if sequence == 0:
                return None
            if known is None and self._forgotten:
                raise UnknownProducerId(
                    f"producer {producer} is not known here, or was forgotten: begin another epoch at sequence 0 with "
                    "batches that were never sent before, and look whether the others are there"
                )
            raise OutOfOrderSequence(f"producer {producer} is new at epoch {epoch}: it starts at 0, not {sequence}")
        if epoch < known.epoch:
            raise InvalidProducerEpoch(f"producer {producer} epoch {epoch} is fenced by {known.epoch}: start anew")
        behind = known.last_sequence - sequence
        if behind == -1:
            return None
        if behind < 0:
            raise OutOfOrderSequence(
                f"producer {producer} sent batch {sequence} after {known.last_sequence}: one was lost"
            )
        index = self._index(known, producer, sequence)
        stored, sent = known.batches[index * _WORDS + 1], _content(rows, crc, digest)
        if stored != sent and not (digest and _may_be(stored, producer, rows)):
            raise InvalidProducerEpoch(
                f"producer {producer} sent another batch {sequence} than the one that is stored: somebody else has "
                "this id, or the topic's settings have changed since. Look whether it is there, and start anew",
                maybe_written=True,
            )
        return known.place(index)

    def newest(self, producer: int) -> Newest | None:
        """The newest epoch of a producer; None if nothing is remembered of it."""
        known = self._beside(producer).get(producer)
        if known is None:
            return None
        places = [known.place(index) for index in range(known.count)]
        rows = tuple(place.last_offset - place.base_offset + 1 for place in places)
        return Newest(known.epoch, known.last_sequence, rows)

    def _beside(self, producer: int) -> OrderedDict[int, _Written]:
        return self._kept if producer & KEPT_PRODUCER else self._known

    def _index(self, known: _Written, producer: int, sequence: int) -> int:
        index = known.count - 1 - (known.last_sequence - sequence)
        if index < 0:
            raise InvalidProducerEpoch(
                f"producer {producer} sent batch {sequence} again after {known.last_sequence}: its place is "
                "forgotten. Look whether it is there, and start anew",
                maybe_written=True,
            )
        return index

    def wrote(
        self,
        producer: int,
        epoch: int,
        sequence: int,
        place: OffsetSpan,
        *,
        crc: int = 0,
        timestamp_ms: int = 0,
        digest: int = 0,
    ) -> None:
        those = self._beside(producer)
        known = those.get(producer)
        if known is None or epoch != known.epoch:
            known = those[producer] = _Written(epoch, sequence - 1, 0, array("q"), _recent(known))
        if sequence != known.last_sequence + 1:
            del known.batches[:]  # a log of a release that took any sequence
        known.last_sequence = sequence
        known.batches.append(place.base_offset)
        known.batches.append(_content(place.last_offset - place.base_offset + 1, crc, digest))
        if len(known.batches) > REMEMBERED * _WORDS:
            del known.batches[:_WORDS]
        self._newest_ms = known.last_ms = max(self._newest_ms, timestamp_ms)
        those.move_to_end(producer)
        self._forget_silent()

    def _forget_silent(self) -> None:
        for those in (self._known, self._kept):
            while those:
                silent_longest = next(iter(those))
                expired = those is self._known and those[silent_longest].last_ms + self.expire_ms < self._newest_ms
                if not expired and len(those) <= self.count_max:
                    break
                del those[silent_longest]
                self._forgotten = True

    def truncated(self, end: Offset) -> None:
        """Drop the batches that were cut off. A producer is forgotten if nothing remembered of it is left."""
        for those in (self._known, self._kept):
            for producer, known in list(those.items()):
                kept = known.below(end)
                if kept is None:
                    del those[producer]
                    self._forgotten = self._forgotten or known.last_sequence >= REMEMBERED
                else:
                    those[producer] = kept

    def trimmed(self) -> None:
        """Note that the log has lost its head. A producer that is remembered stays so."""
        self._forgotten = True

    def below(self, offset: Offset) -> list[KnownProducer]:
        """What is known of the batches below `offset`, within BELOW_BYTES_MAX. With many producers it has fewer batches
        of each; with too many, those that wrote last."""
        share = BELOW_BYTES_MAX // max(1, len(self)) - _PRODUCER_BYTES
        words_max = _WORDS * max(1, share // _BATCH_BYTES)
        found: list[KnownProducer] = []
        bytes_left = BELOW_BYTES_MAX
        # If not all fit, the producers that are least likely to come back are left out.
        for producer, each in chain(reversed(self._kept.items()), reversed(self._known.items())):
            known = each.below(offset)
            if known is not None:
                batches = known.batches[-words_max:].tobytes()
                bytes_left -= len(batches) + _PRODUCER_BYTES
                if bytes_left < 0:
                    break
                found.append(KnownProducer(producer, known.epoch, known.last_sequence, known.last_ms, batches))
        return found[::-1]


def _content(rows: int, crc: int, digest: int) -> int:
    return rows << _CRC_BITS | (digest | _HAS_DIGEST if digest else crc)


def _may_be(stored: int, producer: int, rows: int) -> bool:
    """Whether a batch with a digest may be this one, which an older program stored: see the rules."""
    return bool(producer & KEPT_PRODUCER) and not stored & _HAS_DIGEST and stored >> _CRC_BITS == rows


def _recent(known: _Written | None) -> _Written | None:
    """The epoch, with as many earlier ones as may be remembered beside a new one."""
    oldest, epochs = known, 1
    while oldest is not None and epochs < EPOCHS_REMEMBERED - 1:
        oldest, epochs = oldest.before, epochs + 1
    if oldest is not None:
        oldest.before = None
    return known
