"""A replica's folder: its name, and where it is, told so that a reader on the same host finds the very same folder
there, or nothing.

A path alone may name an old copy on another host, or a folder of a container. Within one boot of one kernel, a device
number names one file system, and an inode number one folder in it. A folder of another user than the broker's is not
the broker's, whoever says so.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from spark_replication.messages.ranges import ReplicaFolder
from spark_replication.model import TopicPartition

REPLICA_FOLDER = re.compile(r"(?P<partition>.+-(?:0|[1-9]\d*))\.(?P<topic_id>[^.]+)")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def partition_of_folder(name: str) -> TopicPartition:
    """The partition of a replica's folder. A copy may have any name, which stands for the topic then."""
    match = REPLICA_FOLDER.fullmatch(name)
    return TopicPartition(name, 0) if match is None else TopicPartition.parse(match["partition"])


def replica_folder(path: Path) -> ReplicaFolder | None:
    """Where this folder is. None if there is no such folder, or nobody could tell it from another."""
    path = path.absolute()
    try:
        found = path.stat()
        boot_id = _boot_id()
    except OSError:
        return None
    return ReplicaFolder(path=str(path), boot_id=boot_id, device=found.st_dev, inode=found.st_ino)


def is_here(folder: ReplicaFolder, uid: int) -> bool:
    """Whether this very folder is there, and belongs to this user."""
    path = Path(folder.path)
    try:
        return replica_folder(path) == folder and path.stat().st_uid == uid
    except OSError:
        return False


@cache
def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()
