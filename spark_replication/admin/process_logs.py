"""Where the logs of a cluster's processes lie on this host, for the debug bundle: whoever runs it may be in any folder.

Processes themselves say where they write (messages.observing.ToldSettings). Those that do not answer are looked for
beside those that do. What cannot be had is said, and why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from spark_replication.client.asking.told_settings import CONTROLLER
from spark_replication.errors import ReplicationError
from spark_replication.live.guarding.broker_file import read_broker_file
from spark_replication.live.guarding.guardian import GUARDIAN_LOG
from spark_replication.messages.observing import ToldSettings
from spark_replication.process.processes import Unfound, find_process
from spark_replication.storage.directory.broker_directory import boot_id

LOG_BYTES_MAX = 4 << 20  # the end of each log

#: A name, and what collects it, or raises why it cannot be had.
Part = tuple[str, Callable[[], bytes]]
Told = Mapping[str, ToldSettings | ReplicationError]

# The logs in each folder of a data directory, by their whole names: zookeeper/login, which is no log, has a secret.
_LOGS = "*"
_BROKERS = f"{_LOGS}/broker-*"
_GUARDIANS = GUARDIAN_LOG.format("*")
_FOLDERS = {
    "": ("driver.log", "door.log", "page.log"),
    "controller": ("log", "page.log"),
    "zookeeper": ("log",),
    "zookeeper/server-*": ("log",),
    _BROKERS: ("broker.log",),
}
_OF_CONTROLLER = ("driver.log", "controller/log")


def logs_here(told: Told, given: Path) -> Iterator[Part]:
    """The logs on this host. told: by `controller` and `broker 1`. given: the data directory that the asker named, or
    the default: it counts if no process tells of another."""
    here = {
        name: Path(each.directory) for name, each in told.items() if isinstance(each, ToldSettings) and _is_here(each)
    }
    roots = _roots(here) or [given]
    found: set[str] = set()
    for number, root in enumerate(roots):
        prefix = "data" if number == 0 else f"data-{number + 1}"
        for folder, names in _FOLDERS.items():
            yield from _of_folder(prefix, root, folder, names, found)
        yield from _of_guardians(prefix, root, f"{_LOGS}/{_GUARDIANS}")
    beside = {directory.parent for name, directory in here.items() if name != CONTROLLER} - _known(roots)
    for number, logs in enumerate(sorted(beside)):
        prefix = "logs" if number == 0 else f"logs-{number + 1}"
        yield from _of_folder(prefix, logs, "broker-*", _FOLDERS[_BROKERS], found)
        yield from _of_guardians(prefix, logs, _GUARDIANS)
    yield from _lacking(told, found, [*roots, *sorted(beside)])
    yield from _guardians([directory for name, directory in sorted(here.items()) if name != CONTROLLER])


def _is_here(told: ToldSettings) -> bool:
    return told.boot_id == boot_id()


def _roots(here: Mapping[str, Path]) -> list[Path]:
    """The data directories of the processes on this host, the controller's first. log.dir may be elsewhere."""
    roots: dict[Path, None] = {}
    if CONTROLLER in here:
        own = here[CONTROLLER]  # a driver's is the data directory, a process of its own has a folder there
        roots[own.parent if own.name == "controller" else own] = None
    for name, directory in here.items():
        root = directory.parent.parent
        if name != CONTROLLER and any((root / each).exists() for each in ("driver.log", "controller", "zookeeper")):
            roots[root] = None
    return list(roots)


def _known(roots: list[Path]) -> set[Path]:
    """The folders with brokers' directories that are found in these."""
    return {directory.parent for root in roots for directory in root.glob(_BROKERS)}


def _of_folder(prefix: str, root: Path, pattern: str, names: tuple[str, ...], found: set[str]) -> Iterator[Part]:
    """The logs in the folders of this pattern, and of a broker what it has written down of itself. `found` learns the
    place of each, and the names of brokers."""
    wanted = {f"{name}{ending}" for name in names for ending in ("", ".1")}
    for folder in sorted(root.glob(pattern)) if pattern else [root]:
        is_broker = folder.name.startswith("broker-")
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            why = f"{error.strerror}. Run it as a user who may read them, or name the folder with --set data.dir="
            yield _missing(f"logs in {folder}", why)
            continue
        for path in entries:
            place = path.relative_to(root)
            if path.name in wanted:
                found.add(folder.name.replace("-", " ") if is_broker else str(place))
            if path.name in wanted or (is_broker and path.suffix == ".json"):
                yield f"{prefix}/{place}", lambda path=path: _end_of(path)  # type: ignore[misc]


def _of_guardians(prefix: str, root: Path, pattern: str) -> Iterator[Part]:
    for path in sorted([*root.glob(pattern), *root.glob(f"{pattern}.1")]):
        yield f"{prefix}/{path.relative_to(root)}", lambda path=path: _end_of(path)  # type: ignore[misc]


def _lacking(told: Told, found: set[str], searched: list[Path]) -> Iterator[Part]:
    """What of the logs that there are was not found."""
    where = ", ".join(map(str, searched))
    for name, each in told.items():
        if name in found or (name == CONTROLLER and not found.isdisjoint(_OF_CONTROLLER)):
            continue
        if isinstance(each, ReplicationError):
            why = f"it did not say where they are ({each}), and {where} has none of it"
        elif not _is_here(each):
            why = f"it is on another host, where {each.directory} has them: run `debug bundle` there, too"
        elif name == CONTROLLER:
            why = f"{where} has none: a driver that is no job of ours writes to the output of its program"
        else:
            why = f"{each.directory} is not to be seen from here: run `debug bundle` where it is, as in its container"
        yield _missing(f"logs of {name}", why)
    if not any(place.startswith("zookeeper/") for place in found):
        yield _missing(
            "logs of ZooKeeper",
            f"{where} has none: they are on the host of the driver, or, with zookeeper.connect, where that says. If "
            "they are here, name the folder with --set data.dir=",
        )


def _guardians(brokers: list[Path]) -> Iterator[Part]:
    """A guardian that is no task of Spark's writes to the output of the process that it is in, which may show records.
    So nothing of that is taken."""
    guarded: dict[int, list[str]] = {}
    for directory in brokers:
        parent = _parent_of(directory)
        if parent is not None and not _has_own_log(parent, directory.parent):
            guarded.setdefault(parent, []).append(directory.name)
    for pid, names in sorted(guarded.items()):
        try:
            output = str(Path(f"/proc/{pid}/fd/2").readlink())
        except OSError as error:
            output = f"a place that is not to be seen ({error.strerror})"
        yield _missing(
            f"log of the guardian of {', '.join(names)}",
            f"process {pid} writes it to its standard error, {output}, among what else that program prints: look there",
        )


def _has_own_log(pid: int, folder: Path) -> bool:
    for each in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            path = each.readlink()
            if path.parent == folder and path.match(_GUARDIANS):
                return True
    return False


def _parent_of(broker: Path) -> int | None:
    """The process that started this broker. None if that has ended, or the broker has."""
    try:
        file = read_broker_file(broker)
        found = Unfound.ENDED if file is None else find_process(file.mark)
        if file is None or isinstance(found, Unfound):
            return None
        os.close(found)
        parent = int(Path(f"/proc/{file.pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return None
    return parent if parent > 1 else None


def _missing(name: str, why: str) -> Part:
    def refuse() -> bytes:
        raise FileNotFoundError(why)

    return name, refuse


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES_MAX))
        return file.read()
