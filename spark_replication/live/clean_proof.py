"""What a broker can prove of its last life when it starts (I8): the epoch that it continues, having lost nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spark_replication.messages import PartitionCommand
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.storage.broker_directory import (
    boot_id,
    directory_mark,
    read_clean_shutdown,
    read_start_record,
)
from spark_replication.storage.recovery import RecoveryReport


def proven_epoch(directory: Path, *, trust_page_cache: bool) -> int | None:
    """Read before recovery, which drops the proofs if it must cut. None: there is no proof."""
    clean = read_clean_shutdown(directory)
    if clean is not None:
        return clean.broker_epoch
    start = read_start_record(directory)
    if start is None or not trust_page_cache:
        return None
    here = (boot_id(), directory_mark(directory))
    return start.epoch if (start.boot_id, start.directory_mark) == here else None


def losses(
    reports: Iterable[RecoveryReport],
    assigned: Iterable[PartitionCommand],
    found: Iterable[tuple[TopicPartition, str]],
    broker: BrokerId,
) -> list[str]:
    """Why no proof counts: recovery lost something, or the folder of a replica in ISR or ELR is missing."""
    there = set(found)
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
    return lost + missing
