"""A broker's log directory: a folder per replica, and a quarantine for those that are out of service.

    <directory>/orders-0.<topic id>/                  a replica's log
    <directory>/high_watermarks.jsonl                 how far each log is committed
    <directory>/quarantine/…                          folders that are deleted later: storage.directory.quarantine
    <directory>/reserve                               space that is given back to empty a full disk

Other names are left alone. Nothing here deletes a replica that is not in quarantine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from spark_replication.config import TopicSettings
from spark_replication.errors import InvalidRequest, StorageFailed
from spark_replication.messages.commands import PutAside
from spark_replication.model import ReplicaOf, TopicPartition
from spark_replication.storage.directory.quarantine import Quarantine
from spark_replication.storage.directory.replica_folder import REPLICA_FOLDER
from spark_replication.storage.disk.files import Files
from spark_replication.storage.log.high_watermarks import HighWatermarks
from spark_replication.storage.log.partition_log import PartitionLog
from spark_replication.storage.log.recovery import RecoveryReport, WholeLog, recover
from spark_replication.storage.log.segment_memory import SegmentMemory


class LocalLogs:
    """The logs of a broker. `before_cut` drops the broker's proof of a clean start, before recovery changes anything
    (I8). `distrust` makes sure that the next process finds no such proof: a sync has failed, and the log's own disk
    refuses to keep word of it."""

    def __init__(
        self,
        directory: Path,
        *,
        files: Files,
        memory: SegmentMemory,
        now_ms: Callable[[], int],
        before_cut: Callable[[], None],
        distrust: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._files = files
        self._memory = memory
        self._now_ms = now_ms
        self._before_cut = before_cut
        self._distrust = distrust
        self._high_watermarks = HighWatermarks(directory, files)
        self._quarantine = Quarantine(directory, files)
        self._recovered: dict[Path, WholeLog] = {}

    def recover(self) -> list[RecoveryReport]:
        """Recover every log that is there, before the broker registers (B1). `open` uses what this found, and recovers
        again each log whose report says `failed`."""
        self._files.keep_reserve()
        with suppress(OSError):  # a full disk has no room for it: `quarantine` tries again
            self._quarantine.make()
        reports: list[RecoveryReport] = []
        folders = [self.folder(partition, topic_id) for partition, topic_id in self.found()]
        for folder in folders:
            try:
                self._recovered[folder] = self._made_whole(folder)
                reports.append(self._recovered[folder].report)
            except StorageFailed as error:
                # One log keeps no other from being served. `open` tries again, and raises what it meets.
                reports.append(
                    RecoveryReport(folder=str(folder), log_end=0, batches_kept=0, why=error.message, failed=True)
                )
        self._high_watermarks.keep(folder.name for folder in folders)
        return reports

    def open(self, partition: TopicPartition, topic_id: str, settings: TopicSettings) -> PartitionLog:
        """The replica's log, whose `recovery` says what was found. Recovers a log that `recover` has not seen."""
        folder = self.folder(partition, topic_id)
        # Once only: after a close the files are read again, since somebody may have written in between.
        recovered = self._recovered.pop(folder, None)
        if recovered is None:
            try:
                self._files.make_folder(folder)
            except OSError as error:
                raise StorageFailed(f"{folder} cannot be made: {error}. Free space or repair the disk") from error
            recovered = self._made_whole(folder)
        return PartitionLog(recovered, settings=settings, distrust=self._distrust)

    def save_high_watermarks(self, *, durable: bool) -> None:
        self._high_watermarks.save(durable=durable)

    def found(self) -> list[tuple[TopicPartition, str]]:
        try:
            names = self._folders_in(self._directory)
        except OSError as error:
            raise StorageFailed(f"{self._directory} cannot be read: {error}. Repair the disk") from error
        matches = [match for name in names if (match := REPLICA_FOLDER.fullmatch(name))]
        return [(TopicPartition.parse(match["partition"]), match["topic_id"]) for match in matches]

    def folder(self, partition: TopicPartition, topic_id: str) -> Path:
        """The folder of a replica, whether or not it is there."""
        name = f"{partition}.{topic_id}"
        match = REPLICA_FOLDER.fullmatch(name)
        # A name that would not be found again, or that leaves the directory, must not be made.
        if "/" in name or match is None or (match["partition"], match["topic_id"]) != (str(partition), topic_id):
            raise InvalidRequest(f"{name!r} cannot name a replica's folder")
        return self._directory / name

    def quarantine(self, partition: TopicPartition, topic_id: str, *, asked: bool) -> None:
        """Take a replica out of service. One that is not there is out of service already."""
        folder = self.folder(partition, topic_id)
        self._recovered.pop(folder, None)
        try:
            self._quarantine.put(folder, asked=asked, now_ms=self._now_ms())
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StorageFailed(f"{folder} cannot be moved to quarantine: {error}. Repair the disk") from error
        self._high_watermarks.forget(folder.name)

    def put_aside(self, unasked_delay_ms: int) -> list[PutAside]:
        """The logs in quarantine that nobody asked to delete. Raises StorageFailed."""
        try:
            found = self._quarantine.unasked()
        except OSError as error:
            raise StorageFailed(f"the quarantine in {self._directory} cannot be read: {error}") from error
        return [
            PutAside(
                replica=ReplicaOf(TopicPartition.parse(match["partition"]), match["topic_id"]),
                folder=path,
                until_ms=at_ms + unasked_delay_ms,
            )
            for name, path, at_ms in found
            if (match := REPLICA_FOLDER.fullmatch(name))
        ]

    def delete_quarantined(self, *, asked_delay_ms: int, unasked_delay_ms: int, now_ms: int) -> list[str]:
        """Delete what has been in quarantine for as long as its delay, and return the names of what went. Raises
        StorageFailed if some could not be deleted; the others were."""
        try:
            deleted, failed = self._quarantine.delete_due(
                asked_delay_ms=asked_delay_ms, unasked_delay_ms=unasked_delay_ms, now_ms=now_ms
            )
        except OSError as error:
            deleted, failed = [], [error]
        if failed:
            raise StorageFailed(
                f"{len(failed)} folders in quarantine cannot be deleted, {len(deleted)} were: {failed[0]}. "
                f"Remove them by hand"
            ) from failed[0]
        return deleted

    def keep_reserve(self) -> None:
        """See Files.keep_reserve."""
        self._files.keep_reserve()

    def _folders_in(self, folder: Path) -> list[str]:
        """The names of the folders in it, sorted; none if it was never made."""
        try:
            return sorted(self._files.folder_names(folder))
        except FileNotFoundError:
            return []

    def _made_whole(self, folder: Path) -> WholeLog:
        return recover(
            folder,
            self._before_cut,
            files=self._files,
            memory=self._memory,
            high_watermarks=self._high_watermarks,
        )
