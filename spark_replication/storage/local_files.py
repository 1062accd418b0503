"""A broker's log directory: a folder per replica, and a quarantine for those that are out of service.

    <directory>/orders-0.<topic id>/                  a replica's log
    <directory>/high_watermarks.jsonl                 how far each log is committed
    <directory>/quarantine/orders-0.<topic id>.<n>/   one that is deleted later

Names that are neither are left alone. Nothing here deletes a replica that is not in quarantine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from spark_replication.config import TopicSettings
from spark_replication.errors import CorruptState, InvalidRequest, StorageFailed
from spark_replication.model import TopicPartition, Value, decode, encode
from spark_replication.storage.files import Files
from spark_replication.storage.high_watermarks import HighWatermarks
from spark_replication.storage.partition_log import PartitionLog
from spark_replication.storage.recovery import Recovered, RecoveryReport, recover
from spark_replication.storage.segment_memory import SegmentMemory
from spark_replication.storage.state_files import read_file, replace_file

QUARANTINE = "quarantine"
_MARKER = "quarantined.json"
_REPLICA_FOLDER = re.compile(r"(?P<partition>.+-(?:0|[1-9]\d*))\.(?P<topic_id>[^.]+)")


class Quarantined(Value, frozen=True, kw_only=True):
    """quarantined.json of a folder: since when it has been out of service."""

    at_ms: int


class LocalLogs:
    """before_cut drops the broker's proof of a clean start, before recovery changes anything (I8)."""

    def __init__(
        self,
        directory: Path,
        *,
        files: Files,
        memory: SegmentMemory,
        now_ms: Callable[[], int],
        before_cut: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._files = files
        self._memory = memory
        self._now_ms = now_ms
        self._before_cut = before_cut
        self._high_watermarks = HighWatermarks(directory, files)
        self._recovered: dict[Path, Recovered] = {}

    def recover(self) -> list[RecoveryReport]:
        """Every log found, made whole before the broker registers (B1). `open` then uses what is known of it."""
        for partition, topic_id in self.found():
            folder = self._folder(partition, topic_id)
            self._recovered[folder] = self._made_whole(folder)
        self._high_watermarks.keep(folder.name for folder in self._recovered)
        return [recovered.report for recovered in self._recovered.values()]

    def open(self, partition: TopicPartition, topic_id: str, settings: TopicSettings) -> PartitionLog:
        """The replica's log; its `recovery` says what was found. One that `recover` has not seen is recovered now."""
        folder = self._folder(partition, topic_id)
        # Once only: after a close the files are read again, since somebody may have written in between.
        recovered = self._recovered.pop(folder, None)
        if recovered is None:
            try:
                self._files.make_folder(folder)
            except OSError as error:
                raise StorageFailed(f"{folder} cannot be made: {error}. Free space or repair the disk") from error
            recovered = self._made_whole(folder)
        return PartitionLog(recovered, settings=settings)

    def save_high_watermarks(self, *, durable: bool) -> None:
        self._high_watermarks.save(durable=durable)

    def found(self) -> list[tuple[TopicPartition, str]]:
        try:
            names = self._folders_in(self._directory)
        except OSError as error:
            raise StorageFailed(f"{self._directory} cannot be read: {error}. Repair the disk") from error
        matches = [match for name in names if (match := _REPLICA_FOLDER.fullmatch(name))]
        return [(TopicPartition.parse(match["partition"]), match["topic_id"]) for match in matches]

    def quarantine(self, partition: TopicPartition, topic_id: str) -> None:
        """A replica that is not there is out of service already."""
        folder = self._folder(partition, topic_id)
        self._recovered.pop(folder, None)
        try:
            if folder.name not in self._folders_in(self._directory):
                return
            # Marked before it moves: nothing lies in quarantine without a date.
            self._mark(folder, self._now_ms())
            quarantine = self._directory / QUARANTINE
            self._files.make_folder(quarantine)
            number = _next_number(self._folders_in(quarantine), folder.name)
            self._files.rename_folder(folder, quarantine / f"{folder.name}.{number}")
            self._high_watermarks.forget(folder.name)
        except OSError as error:
            raise StorageFailed(f"{folder} cannot be moved to quarantine: {error}. Repair the disk") from error

    def delete_quarantined(self, *, older_than_ms: int, now_ms: int) -> list[str]:
        """Delete what has been in quarantine for `older_than_ms` or longer; the names of what went."""
        quarantine = self._directory / QUARANTINE
        deleted: list[str] = []
        try:
            for name in self._folders_in(quarantine):
                if now_ms - self._quarantined_at(quarantine / name, now_ms) >= older_than_ms:
                    self._files.remove_folder(quarantine / name)
                    deleted.append(name)
        except OSError as error:
            raise StorageFailed(f"{quarantine} cannot be emptied: {error}. Remove its folders by hand") from error
        return deleted

    def _quarantined_at(self, folder: Path, now_ms: int) -> int:
        """A marker that cannot be read is written again: the delay starts anew, rather than never or at once."""
        marker = folder / _MARKER
        try:
            data = read_file(marker, files=self._files)
            if data is not None:
                return decode(data, Quarantined, str(marker)).at_ms
        except CorruptState:
            pass
        self._mark(folder, now_ms)
        return now_ms

    def _folders_in(self, folder: Path) -> list[str]:
        """None, if it was never made."""
        try:
            return sorted(self._files.folder_names(folder))
        except FileNotFoundError:
            return []

    def _mark(self, folder: Path, at_ms: int) -> None:
        replace_file(folder / _MARKER, encode(Quarantined(at_ms=at_ms)), durable=False, files=self._files)

    def _made_whole(self, folder: Path) -> Recovered:
        return recover(
            folder,
            self._before_cut,
            files=self._files,
            memory=self._memory,
            high_watermarks=self._high_watermarks,
        )

    def _folder(self, partition: TopicPartition, topic_id: str) -> Path:
        name = f"{partition}.{topic_id}"
        match = _REPLICA_FOLDER.fullmatch(name)
        # A name that would not be found again, or that leaves the directory, must not be made.
        if "/" in name or match is None or (match["partition"], match["topic_id"]) != (str(partition), topic_id):
            raise InvalidRequest(f"{name!r} cannot name a replica's folder")
        return self._directory / name


def _next_number(names: list[str], name: str) -> int:
    numbers = [each[len(name) + 1 :] for each in names if each.startswith(f"{name}.")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0) + 1
