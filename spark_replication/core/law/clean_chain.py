"""The clean chain (I8): whether a broker that registers has lost nothing since its last registration.

A proof names the epoch that it continues. Nothing else may say that a registration is clean.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import BrokerEpoch, BrokerId, Registration, TopicPartition


class RecoveredLog(Protocol):
    """What recovery found in one log. `why` is the reason of the first cut, empty if there was none."""

    @property
    def folder(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def lossless(self) -> bool: ...


def proven_epoch(
    clean_shutdown: int | None, started: int | None, *, same_boot_and_directory: bool, trust_page_cache: bool
) -> int | None:
    """The epoch that the files in the log directory prove to be continued; None if they prove nothing.

    `clean_shutdown` is the epoch in the clean-shutdown file. `started` is the epoch in the record of the last start: it
    counts only where a killed process has lost nothing, on the same boot of its host and in the same directory.
    """
    if clean_shutdown is not None:
        return clean_shutdown
    return started if same_boot_and_directory and trust_page_cache else None


def losses(
    reports: Iterable[RecoveredLog],
    assigned: Iterable[PartitionCommand],
    found: Iterable[tuple[TopicPartition, str]],
    broker: BrokerId,
    unreadable: Unreadable = ALL_READ,
) -> list[str]:
    """The reasons why no proof counts: recovery lost something, or the folder of a replica in ISR or ELR is missing.

    `unreadable` is about what is assigned to this broker: a replica whose state cannot be read may be in the ISR.
    """
    there = set(found)
    partitions_there = {partition for partition, _ in there}
    lost = [
        f"{report.folder}: {report.why or 'its log ends below its checkpoint'}"
        for report in reports
        if not report.lossless
    ]
    missing = [
        f"{command.topic_partition} has no folder"
        for command in assigned
        if broker in command.state.members and (command.topic_partition, command.topic_id) not in there
    ]
    unknown = [
        f"{partition} has no folder, and its state cannot be read"
        for partition in sorted(unreadable.partitions - partitions_there)
    ]
    return lost + missing + unknown


def next_epoch(last: BrokerEpoch | None, wanted: Registration) -> BrokerEpoch:
    """The content that a registration gives /brokers/epochs/[id]. Its epoch is the next version of that znode."""
    incarnation = wanted.incarnation
    if last is None:
        return BrokerEpoch(epoch=0, incarnation=incarnation, clean_since=0)
    # The last registration may be an attempt of this process whose answer was lost: nobody could name that epoch.
    # A broker without any proof stays unclean: an I/O error may have cost it what it had.
    clean = wanted.continues is not None and (wanted.continues == last.epoch or last.incarnation == incarnation)
    epoch = last.epoch + 1
    return BrokerEpoch(epoch=epoch, incarnation=incarnation, clean_since=last.clean_since if clean else epoch)
