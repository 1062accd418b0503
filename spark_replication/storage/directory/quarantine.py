"""Replicas' folders that are out of service, kept for a while in case somebody wants them back.

    <directory>/quarantine/orders-0.<topic id>.<number>.deleted-<at_ms>/
    <directory>/quarantine/orders-0.<topic id>.<number>.unassigned-<at_ms>/

Rules:
- The name says since when a folder is here, and whether somebody asked to delete it: moving a folder here writes no
  file, which a full disk would refuse.
- A folder that nobody asked to delete is kept for longer: it may be missing in ZooKeeper by mistake.
- A date that cannot be true (the clock was set since) counts for nothing: the delay starts anew, since it could
  otherwise be over at once or never.
"""

from __future__ import annotations

import re
from pathlib import Path

from spark_replication.storage.disk.files import Files

QUARANTINE = "quarantine"
# How much longer than its delay a folder may be here, while its broker was down. An older date is not believed.
OVERDUE_MS_MAX = 30 * 24 * 3_600_000

_DELETED, _UNASSIGNED = "deleted", "unassigned"
_NAME = re.compile(rf"(?P<folder>.+)\.(?P<number>\d+)\.(?P<why>{_DELETED}|{_UNASSIGNED})-(?P<at_ms>\d+)", re.ASCII)


class Quarantine:
    """The quarantine of one directory. Methods raise the files' own OSError."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._folder = directory / QUARANTINE
        self._files = files
        self._last_number: int | None = None

    def make(self) -> None:
        """Make its folder before it is needed: a full disk may refuse that later."""
        self._files.make_folder(self._folder)

    def put(self, folder: Path, *, asked: bool, now_ms: int) -> None:
        """Move a folder here. `asked` says that somebody wants it deleted. Raises FileNotFoundError if it is not
        there."""
        target = self._folder / self._name(folder.name, asked=asked, now_ms=now_ms)

        def move() -> None:
            self.make()
            self._files.rename_folder(folder, target)

        self._files.with_reserve(move)

    def delete_due(self, *, asked_delay_ms: int, unasked_delay_ms: int, now_ms: int) -> tuple[list[str], list[OSError]]:
        """Delete what has been here for as long as its delay. Returns the names of what went, and the error of each
        folder that did not: one that cannot be deleted keeps no other."""
        deleted: list[str] = []
        failed: list[OSError] = []
        for name in self._names():
            try:
                asked, at_ms = self._put_at(name)
                delay_ms = asked_delay_ms if asked else unasked_delay_ms
                if at_ms is None or not 0 <= now_ms - at_ms <= delay_ms + OVERDUE_MS_MAX:
                    self._put_anew(name, asked=asked, now_ms=now_ms)
                elif now_ms - at_ms >= delay_ms:
                    self._files.remove_folder(self._folder / name)
                    deleted.append(name)
            except OSError as error:
                failed.append(error)
        return deleted, failed

    def unasked(self) -> list[tuple[str, str, int]]:
        """What nobody asked to delete: the name that each folder had before, its path in the directory, and since when
        it is here."""
        matches = [match for name in self._names() if (match := _NAME.fullmatch(name))]
        return [
            (match["folder"], f"{QUARANTINE}/{match[0]}", int(match["at_ms"]))
            for match in matches
            if match["why"] == _UNASSIGNED
        ]

    def _put_at(self, name: str) -> tuple[bool, int | None]:
        """Whether somebody asked to delete it, and since when it is here; None if its name does not say so, which a
        person gave."""
        match = _NAME.fullmatch(name)
        return (False, None) if match is None else (match["why"] == _DELETED, int(match["at_ms"]))

    def _put_anew(self, name: str, *, asked: bool, now_ms: int) -> None:
        match = _NAME.fullmatch(name)
        folder = name if match is None else match["folder"]
        target = self._folder / self._name(folder, asked=asked, now_ms=now_ms)
        self._files.with_reserve(lambda: self._files.rename_folder(self._folder / name, target))

    def _name(self, folder: str, *, asked: bool, now_ms: int) -> str:
        """A name that no other folder here has: numbers rise."""
        if self._last_number is None:
            self._last_number = max((_number(name) for name in self._names()), default=0)
        self._last_number += 1
        return f"{folder}.{self._last_number}.{_DELETED if asked else _UNASSIGNED}-{max(0, now_ms)}"

    def _names(self) -> list[str]:
        try:
            return sorted(self._files.folder_names(self._folder))
        except FileNotFoundError:
            return []


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    return 0 if match is None else int(match["number"])
