"""Runs the simulator with mistakes in place: `python -m tests.sim.planted PLACES [options of sim]`, PLACES in JSON; or
tests: `python -m tests.sim.planted PLACES --test FILE`.

Python loads the changed text of a module in place of the file's. The files stay as they are, and what is compiled of
the other modules is used. So this imports nothing of the package before Python knows where to look."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType

Place = tuple[str, str, str]  # a file of the package, a line of it, and what that becomes


class ChangedModules:
    """Where Python looks for a module first (a "meta path finder")."""

    def __init__(self, package: Path, places: Sequence[Place]) -> None:
        self._changes: dict[str, list[tuple[str, str]]] = {}
        for file, line, becomes in places:
            self._changes.setdefault(str(package / file), []).append((line, becomes))

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.origin not in self._changes:
            return None
        spec.loader = ChangedModule(name, spec.origin, self._changes[spec.origin])
        return spec


class ChangedModule(SourceFileLoader):
    def __init__(self, name: str, path: str, changes: Sequence[tuple[str, str]]) -> None:
        super().__init__(name, path)
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType:
        """Compile it here: what is kept of it compiled is of the text without the mistake."""
        text = Path(self.path).read_text()
        for line, becomes in self._changes:
            assert text.count(line) == 1, f"{self.path} does not hold this once: {line}"
            text = text.replace(line, becomes)
        code: CodeType = self.source_to_code(text.encode(), self.path)
        return code


def main() -> None:
    places, *options = sys.argv[1:]
    package = find_spec("spark_replication")
    assert package is not None
    assert package.origin is not None
    sys.meta_path.insert(0, ChangedModules(Path(package.origin).parent, json.loads(places)))
    if options[0] == "--test":
        import pytest

        sys.exit(pytest.main(["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", *options[1:]]))
    from spark_replication.admin.cli.main import main as run

    sys.argv = ["spark-replication", "sim", *options]
    run()


if __name__ == "__main__":
    main()
