"""broker.json in a broker's directory: where the process that lives there serves.

It is written once the process serves, and removed at a clean stop. So a reader also asks the directory's lock, or the
process, whether it still holds.
"""

from __future__ import annotations

import os
from pathlib import Path

from spark_replication.errors import CorruptState, StorageFailed
from spark_replication.model import Epoch, Value, decode, encode
from spark_replication.process.processes import ProcessMark, Unfound, find_process
from spark_replication.storage.directory.broker_directory import probe
from spark_replication.storage.disk.files import Files
from spark_replication.storage.disk.state_files import LOCAL_FILES, read_file, remove_file, replace_file

BROKER_FILE = "broker.json"
LOG_FILE = "broker.log"  # what the broker's process says


class BrokerFile(Value, frozen=True, kw_only=True):
    pid: int
    #: As in process.processes: pids come again, in containers even at once.
    pid_namespace: int = 0
    started: int = 0
    #: As in the registration of the process.
    incarnation: str = ""
    host: str
    port: int
    replication_port: int
    epoch: Epoch

    @property
    def mark(self) -> ProcessMark:
        return ProcessMark(self.pid, self.pid_namespace, self.started)


def write_broker_file(directory: Path, found: BrokerFile, files: Files = LOCAL_FILES) -> None:
    """StorageFailed if the disk refuses. files: those with a reserve, if the caller has them."""
    path = directory / BROKER_FILE
    try:
        files.with_reserve(lambda: replace_file(path, encode(found), durable=False, files=files))
    except OSError as error:
        raise StorageFailed(f"{path} cannot be written: {error}. Free space or repair the disk") from error


def read_broker_file(directory: Path) -> BrokerFile | None:
    """None if there is no file, or a damaged one: it is not flushed, so a host's crash may leave it empty."""
    path = directory / BROKER_FILE
    data = read_file(path)
    if data is None:
        return None
    try:
        return decode(data, BrokerFile, str(path))
    except CorruptState:
        return None


def serves(directory: Path) -> bool:
    """Whether the process that the file names lives. The lock alone does not say so: it may be its successor's, which
    does not serve yet. Of a process that is not seen from here nobody can say more than the lock does."""
    file = read_broker_file(directory)
    if file is None or not probe(directory):
        return False
    found = find_process(file.mark)
    if isinstance(found, Unfound):
        return found is Unfound.NOT_SEEN
    os.close(found)
    return True


def remove_broker_file(directory: Path) -> None:
    """StorageFailed if the disk refuses."""
    path = directory / BROKER_FILE
    try:
        remove_file(path)
    except OSError as error:
        raise StorageFailed(f"{path} cannot be removed: {error}. Repair the disk") from error
