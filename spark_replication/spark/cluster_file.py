"""The data directory, and cluster.json in it: which driver of this directory commands a cluster that has started.

The file exists from the end of a driver's start, for as long as that driver commands. A driver that is killed leaves it
behind until the next start: its driver_pid is nobody's then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from spark_replication.config import Settings
from spark_replication.errors import InvalidConfig
from spark_replication.model import Value, decode, encode
from spark_replication.process.files import shared_directory
from spark_replication.storage.disk.state_files import read_file, replace_file

CLUSTER_FILE = "cluster.json"

log = logging.getLogger(__name__)


def make_data_directory(settings: Settings) -> Path:
    path = Path(settings.data_dir).resolve()
    try:
        shared_directory(path)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise InvalidConfig(
            f"data.dir {path} cannot be used: {error.strerror}. Name a directory that this user may write"
        ) from error


class ClusterFile(Value, frozen=True, kw_only=True):
    """The content of cluster.json. Addresses of brokers are not in it, since they change."""

    #: A bootstrap that outlives the brokers.
    zookeeper: str
    controller_epoch: int
    driver_pid: int
    #: When the driver became the controller.
    active_since_ms: int = 0


class OwnClusterFile:
    """cluster.json, as its driver writes it. Thread-safe. Errors of the disk are logged: no cluster depends on the
    file."""

    def __init__(self, data_directory: Path) -> None:
        self._path = data_directory / CLUSTER_FILE
        self._lock = threading.Lock()
        #: None until the start is complete.
        self._zookeeper: str | None = None
        #: The controller epoch, and since when; None while this driver does not command.
        self._active: tuple[int, int] | None = None
        self._written = b""

    def started(self, zookeeper: str) -> None:
        with self._lock:
            self._zookeeper = zookeeper
            self._write()

    def took_over(self, controller_epoch: int, now_ms: int) -> None:
        with self._lock:
            self._active = controller_epoch, now_ms
            self._write()

    def stood_down(self) -> None:
        """Remove the file, unless another driver of this directory has written it since."""
        with self._lock, _logged(self._path):
            self._active = None
            if self._written and read_file(self._path) == self._written:
                self._path.unlink()

    def _write(self) -> None:
        if self._zookeeper is None or self._active is None:
            return
        controller_epoch, since_ms = self._active
        file = ClusterFile(
            zookeeper=self._zookeeper,
            controller_epoch=controller_epoch,
            driver_pid=os.getpid(),
            active_since_ms=since_ms,
        )
        with _logged(self._path):
            data = encode(file)
            replace_file(self._path, data, durable=False)
            self._written = data


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.warning("%s does not say who commands: %s", path, error)


def read_cluster_file(data_directory: Path) -> ClusterFile | None:
    path = data_directory / CLUSTER_FILE
    data = read_file(path)
    return None if data is None else decode(data, ClusterFile, str(path))
