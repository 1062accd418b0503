"""The proofs in a broker's directory (I8): what they say of its last life, and what it leaves there for the next.

core.law.clean_chain judges them.
"""

from __future__ import annotations

import logging
from pathlib import Path

from spark_replication.core.law import clean_chain
from spark_replication.core.law.clean_chain import losses
from spark_replication.errors import StorageFailed
from spark_replication.live.broker.records import Records
from spark_replication.storage.directory.broker_directory import (
    StartRecord,
    boot_id,
    directory_mark,
    drop_proofs,
    read_clean_shutdown,
    read_start_record,
    write_start_record,
)
from spark_replication.storage.disk.files import Files

__all__ = ["StartProof", "drop_outdated", "losses", "proven_epoch"]

log = logging.getLogger(__name__)


def proven_epoch(directory: Path, *, trust_page_cache: bool) -> int | None:
    """The epoch whose records are all here, by these proofs; None if they prove nothing.

    Read it before recovery, which drops the proofs if it has to cut.
    """
    clean = read_clean_shutdown(directory)
    start = read_start_record(directory)
    here = (boot_id(), directory_mark(directory))
    return clean_chain.proven_epoch(
        None if clean is None else clean.broker_epoch,
        None if start is None else start.epoch,
        same_boot_and_directory=start is not None and (start.boot_id, start.directory_mark) == here,
        trust_page_cache=trust_page_cache,
    )


def drop_outdated(directory: Path) -> None:
    """Drop the proofs of a life that lost data. If the disk refuses that, they are void once the
    broker has registered, since they name the epoch before."""
    try:
        drop_proofs(directory)
    except StorageFailed as error:
        log.error("%s", error)


class StartProof:
    """The start record, by which a killed process is clean on the same boot. It stands for as long as nothing that the
    process wrote is in doubt. Thread-safe.

    A disk that has refused a sync, and to note that, may refuse to drop the record as well. Once this process has
    registered again the record proves nothing either: it names the epoch before, and no other is written. So the next
    process is wrongly clean only if, besides, ZooKeeper was out of reach for the rest of this one's life.
    """

    def __init__(self, directory: Path, mark: str, files: Files, records: Records) -> None:
        self._directory = directory
        self._mark = mark
        self._files = files
        self._records = records
        self._given_up = False

    def renew(self, epoch: int) -> None:
        """Write the record for this epoch. Call it after each registration."""
        record = StartRecord(boot_id=boot_id(), directory_mark=self._mark, epoch=epoch)
        self._records.write("the start record", lambda: self._write(record))

    def give_up(self) -> bool:
        """Drop the record for the rest of this life. False: the disk keeps it, and this process is to register
        again."""
        if self._given_up:
            return True
        self._given_up = True  # first: a record that is being written is dropped after it
        return self._records.write("the start record", lambda: drop_proofs(self._directory))

    def _write(self, record: StartRecord) -> None:
        if self._given_up:
            drop_proofs(self._directory)
        else:
            write_start_record(self._directory, record, self._files)
