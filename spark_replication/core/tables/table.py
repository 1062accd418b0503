"""What a topic's table says of itself: up to where it has each partition, and at which leader epoch that was told.

Rules:
- TB1: a commit is the only truth. It names, for each partition that it adds rows of, where that partition ends from
  then on, and the leader epoch at which these rows were confirmed. Of two commits that were made on one version, and
  name one partition, the second is refused.
- TB5: a seal names an epoch, and adds no rows. What was confirmed at an earlier epoch is refused after it.
- The first commit of a partition names where it begins, and who gives up its oldest rows names where it begins from
  then on (`retaining`).
- Nothing else is believed about what is in the table: no message, no znode, no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.model import Epoch, Offset, PartitionNumber, Scalar, require

NO_EPOCH = -1


def is_table(topic: str, own: Mapping[str, Scalar], *, by_default: bool) -> bool:
    """own: the settings that the topic overrides. by_default: what the cluster's are. What groups have committed is the
    log's alone, whatever is set."""
    return topic != GROUPS_TOPIC and bool(own.get("table", by_default))


class TableVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a topic's table, as it was loaded or committed."""

    #: Rises with every commit, whoever makes it and whatever for. None: there is no table.
    number: int | None = None
    #: The offset behind the last row of each partition. A partition that is not here has no rows, and may begin
    #: anywhere.
    ends: Mapping[PartitionNumber, Offset] = {}
    #: The highest leader epoch that a commit or a seal of the partition has named.
    epochs: Mapping[PartitionNumber, Epoch] = {}
    #: The offset of the first row of each partition: its end, if all its rows were given up. A partition that has an
    #: end and is not here was begun by an earlier release.
    starts: Mapping[PartitionNumber, Offset] = {}

    def end_of(self, partition: PartitionNumber) -> Offset | None:
        return self.ends.get(partition)

    def epoch_of(self, partition: PartitionNumber) -> int:
        return self.epochs.get(partition, NO_EPOCH)


class RowRange(msgspec.Struct, frozen=True, kw_only=True):
    """The rows [start, end) of one partition, all committed in its log, as a leader has confirmed.

    Invariant: start < end, and both are where stored batches begin or end.
    """

    partition: PartitionNumber
    start: Offset
    end: Offset
    #: The leader epoch of the row before `end`.
    last_epoch: Epoch
    #: The epoch of the leader that has confirmed that its log has just these rows.
    confirmed_epoch: Epoch

    def __post_init__(self) -> None:
        require(self.start < self.end, f"[{self.start}, {self.end}) has no rows")
        require(
            self.last_epoch <= self.confirmed_epoch,
            f"a leader of epoch {self.confirmed_epoch} cannot confirm rows of epoch {self.last_epoch}",
        )


def continues(version: TableVersion, added: RowRange) -> bool:
    """Whether these rows may be committed on this version: they begin where it ends, and no later epoch was named."""
    end = version.end_of(added.partition)
    return (end is None or end == added.start) and version.epoch_of(added.partition) <= added.confirmed_epoch


def require_continued(version: TableVersion, added: Sequence[RowRange]) -> None:
    """A table's last guard against a writer's mistake: these rows make a commit on this version."""
    numbers = [each.partition for each in added]
    require(bool(numbers), "a commit adds rows")
    require(len(set(numbers)) == len(numbers), f"a commit adds one range of each partition, not of {numbers}")
    for each in added:
        require(
            continues(version, each),
            f"partition {each.partition} ends at {version.end_of(each.partition)} and epoch "
            f"{version.epoch_of(each.partition)}: [{each.start}, {each.end}) of epoch {each.confirmed_epoch} is no "
            "continuation",
        )


def require_sealed(version: TableVersion, epochs: Mapping[PartitionNumber, Epoch]) -> None:
    """A table's last guard against a mistake of whoever seals it: each of these epochs is above the last one."""
    require(bool(epochs), "a seal names epochs")
    for partition, epoch in epochs.items():
        last = version.epoch_of(partition)
        require(epoch > last, f"epoch {epoch} of partition {partition} is not above {last}")


def is_unchanged(before: TableVersion, now: TableVersion, partitions: Iterable[PartitionNumber]) -> bool:
    """Whether no commit and no seal between these versions named any of the partitions. Each commit raises the end, and
    each seal the epoch, so that equal values say so."""
    return all(
        before.end_of(each) == now.end_of(each) and before.epoch_of(each) == now.epoch_of(each) for each in partitions
    )


def extended(version: TableVersion, number: int, added: Iterable[RowRange]) -> TableVersion:
    """The version that a commit of these rows on `version` makes."""
    ends, epochs, starts = dict(version.ends), dict(version.epochs), dict(version.starts)
    for each in added:
        if is_begun_by(version, each):
            starts[each.partition] = each.start
        ends[each.partition] = each.end
        epochs[each.partition] = each.confirmed_epoch
    return TableVersion(number=number, ends=ends, epochs=epochs, starts=starts)


def is_begun_by(version: TableVersion, added: RowRange) -> bool:
    """Whether these are the first rows of their partition."""
    return version.end_of(added.partition) is None


def sealed(version: TableVersion, number: int, epochs: Mapping[PartitionNumber, Epoch]) -> TableVersion:
    """The version that a seal of these epochs on `version` makes."""
    epochs = {**version.epochs, **epochs}
    return TableVersion(number=number, ends=version.ends, epochs=epochs, starts=version.starts)
