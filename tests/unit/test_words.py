"""Rules of words: what pages, docstrings and comments name is there, and docstrings are read once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from spark_replication.config import described
from spark_replication.messages import actions
from spark_replication.messages.frames import Frame
from tests.unit.sources import statements

PACKAGE = Path(__file__).parents[2] / "spark_replication"
DESIGN = PACKAGE / "design"
PAGES = sorted(DESIGN.glob("*.md"))
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted({path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()})
# Settings have dots in their names, too: mirror.path, or page.*, which stands for several.
SETTINGS = [each.name for each in described()]
_NAMED = re.compile(rf"(?<![\w./@-])(?:spark_replication\.)?((?:{'|'.join(ROOMS)})(?:\.\w+)+)")
_MEMBER = re.compile(r"`([A-Z]\w+)\.(\w+)")
_PATH = re.compile(r"`(\w[\w.-]*/[\w./-]*)`")
# "Of all of them.", "None: there is none.": of what?
_FRAGMENTS = ("Of", "Those", "By", "With", "From", "Until", "None:", "True:", "False:")
_ASIDE = re.compile(r"(?:^|[\s.;])(\w+):\s")
# What a docstring that opens with one, and a class's that tells of something aside, look like.
_OPENED = re.compile(rf'^ *"""(?:{"|".join(_FRAGMENTS)})\s', re.MULTILINE)
_LISTING = re.compile(r'^ *class [^\n]*:\n +"""(?:(?!""").)*\w:\s', re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(?:^| )# .*$", re.MULTILINE)
# What is called with the name of a thread; `_thread` is LocalCluster's.
_STARTERS = ("Aside", "Thread", "Worker", "Timers", "Poller", "SocketLoop", "ThreadPoolExecutor", "_thread")
# Spark's settings, and an attribute of kazoo's client.
_OF_OTHERS = ("spark.sql", "spark.authenticate", "spark.driver", "spark.jars", "client.chroot")


def test_what_a_docstring_or_a_comment_names_is_there() -> None:
    texts = {path: path.read_text() for path in MODULES}
    named = {path: {each for each in _named_in(text) if not _is_there(each)} for path, text in texts.items()}
    told = {path: names & _named_in(_words(texts[path])) for path, names in named.items() if names}
    assert {str(path.relative_to(PACKAGE)): sorted(names) for path, names in told.items() if names} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    assert [name for name in sorted(_named_in(text)) if not _is_there(name)] == []
    assert [path for path in _PATH.findall(text) if not _is_a_path(path)] == []
    members = sorted(set(_MEMBER.findall(text)))
    assert [f"{owner}.{member}" for owner, member in members if not _has_member(owner, member)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_a_page_are_no_longer_than_those_of_code(page: Path) -> None:
    lines = [line for line in page.read_text().splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > 120] == []


def test_the_architecture_is_read_at_one_sitting() -> None:
    assert len((DESIGN / "ARCHITECTURE.md").read_text().splitlines()) <= 150


def test_actions_and_frames_are_those_of_the_code() -> None:
    page = (DESIGN / "WIRE.md").read_text()
    known = [each for each in vars(actions).values() if isinstance(each, actions.Action)]
    assert _cells(page, "action") == {each.name for each in (*known, *actions.ADMIN_REQUESTS.values())}
    assert _cells(page, "frame") == {frame.__struct_config__.tag for frame in get_args(Frame)}


def test_threads_are_those_of_the_code() -> None:
    told = {re.sub("[A-Z]+", "*", name) for name in _cells((DESIGN / "THREADS.md").read_text(), "thread")}
    started = {name for path in MODULES if not _is_tool(path) for name in _started_threads(path)}
    assert [name for name in sorted(started) if not any(fnmatch(each, name) for each in told)] == []
    assert [each for each in sorted(told) if not any(fnmatch(each, name) for name in started)] == []


def _cells(page: str, heading: str) -> set[str]:
    """What is quoted in the columns of this name, of all tables."""
    found: set[str] = set()
    column = 0
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if heading in cells:
            column = cells.index(heading)
        elif not line:
            column = 0
        elif column:
            found.update(re.findall("`([^`]+)`", cells[column]))
    return found


def _started_threads(path: Path) -> Iterator[str]:
    """The names that are given to what starts a thread, with a star for what varies."""
    for node in _calls(path):
        named = [each.value for each in node.keywords if each.arg in ("name", "thread_name_prefix")]
        for each in named or node.args[:2]:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value
            elif isinstance(each, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in each.values)


def _calls(path: Path) -> Iterator[ast.Call]:
    text = path.read_text()
    if any(f"{each}(" in text for each in _STARTERS):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _STARTERS:
                yield node


def _is_tool(path: Path) -> bool:
    return path.relative_to(PACKAGE).parts[:2] in (("admin", "bench"), ("admin", "drill"), ("admin", "notebook"))


def test_a_docstring_does_not_open_without_its_noun() -> None:
    opened = [(where, text.split()[0]) for path in _with(_OPENED) for where, text in _told(path)]
    assert [(where, word) for where, word in opened if word in _FRAGMENTS] == []


def test_fields_are_told_where_they_are_declared() -> None:
    """One a line, above the field: not together in the docstring of their class."""
    classes = [node for path in _with(_LISTING) for node in _nodes(path) if isinstance(node, ast.ClassDef)]
    told = [(each.name, name) for each in classes for name in _ASIDE.findall(ast.get_docstring(each) or "")]
    assert [f"{each.name}.{name}" for each in classes for name in _fields(each) if (each.name, name) in told] == []


def _with(pattern: re.Pattern[str]) -> list[Path]:
    """Only they are parsed, which takes most of the time."""
    return [path for path in MODULES if pattern.search(path.read_text())]


def _told(path: Path) -> Iterator[tuple[str, str]]:
    """Every docstring, with the name of what it is of."""
    for node in _nodes(path):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
            yield f"{path.relative_to(PACKAGE)}: {getattr(node, 'name', 'the module')}", text


def _fields(owner: ast.ClassDef) -> Iterator[str]:
    """Those that it declares, and the attributes that its constructor sets."""
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            stored = (each for each in ast.walk(node) if isinstance(each, ast.Attribute))
            yield from (each.attr for each in stored if isinstance(each.ctx, ast.Store))


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return [*statements(ast.parse(path.read_text()))]


def _named_in(text: str) -> set[str]:
    return {name for name in _NAMED.findall(text) if not _is_of_another_kind(name)}


def _is_of_another_kind(name: str) -> bool:
    is_setting = any(each == name or each.startswith(f"{name}.") for each in SETTINGS)
    return is_setting or name.startswith(_OF_OTHERS) or name.endswith((".py", ".yml", ".toml", ".txt"))


def _is_there(name: str) -> bool:
    parts = name.split(".")
    folder = PACKAGE
    while parts and (folder / parts[0]).is_dir():
        folder /= parts.pop(0)
    if not parts:
        return True
    module = folder / f"{parts[0]}.py"
    return module.exists() and all(part in _names_of(module) for part in parts[1:])


def _is_a_path(named: str) -> bool:
    """From the package, or from the root; a folder alone may be of any room."""
    is_folder = named.count("/") == 1 and named.endswith("/") and any(PACKAGE.glob(f"*/{named}"))
    return is_folder or any((root / named).exists() for root in (PACKAGE, PACKAGE.parent))


def _has_member(owner: str, member: str) -> bool:
    defined = re.compile(rf"^class {owner}\b", re.MULTILINE)
    classes = (
        node
        for path in MODULES
        if defined.search(path.read_text())
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name == owner
    )
    return any(member in _names_in(each) for each in classes)


def _words(text: str) -> str:
    """The comments and docstrings of a module."""
    return "\n".join([*_COMMENT.findall(text), *_docstrings(text)])


def _docstrings(text: str) -> Iterator[str]:
    for node in statements(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield ast.get_docstring(node, clean=False) or ""


@cache
def _names_of(path: Path) -> frozenset[str]:
    return _names_in(ast.parse(path.read_text()))


def _names_in(tree: ast.AST) -> frozenset[str]:
    return frozenset(name for node in ast.walk(tree) if (name := _name(node)) is not None)


def _name(node: ast.AST) -> str | None:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None
