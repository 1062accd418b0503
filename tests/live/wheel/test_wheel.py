"""A wheel alone: in an environment with it and its extra `server`, a cluster is started, used and looked at as README
and the guide say, from a folder that has nothing of this checkout."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.process.processes import LockedProcess
from tests.printed import BLOCKS, GUIDE, ROOT, printed, why_not_run

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

MADE_OF = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "pyspark_replicated_log.py", "spark_replication")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
INSTALL_S = 400.0
COMMAND_S = 60.0
#: Of the pages that need no Spark.
PAGES = ("README", "python", "groups", "reference/api")
#: What other extras are for; tests/live/datasource/test_printed.py runs it.
OTHERS = {"spark", "session", "connect", "LeaderTable"}


class Environment:
    """What a person has who installed it: a folder, and `bin`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.python = str(home / "environment" / "bin" / "python")
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
        }
        self.variables = variables | {"PATH": f"{home}/environment/bin:{os.environ['PATH']}"}

    def runs(self, *command: str, given: str = "") -> str:
        ran = subprocess.run(
            command,
            cwd=self.home,
            env=self.variables,
            input=given,
            capture_output=True,
            text=True,
            timeout=COMMAND_S * 2,
            check=False,
        )
        assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
        return ran.stdout

    def types(self, line: str, given: str = "") -> str:
        return self.runs(*shlex.split(line), given=given)


def _made(*command: str) -> None:
    made = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert made.returncode == 0, (command, made.stdout[-2000:], made.stderr[-4000:])


def _installs(environment: Environment, *wanted: str) -> None:
    """As `make setup` does, in the versions that tests have."""
    given = ("--constraint", str(ROOT / ".ci/locked/test.txt"), *wanted)
    try:
        _made(str(Path(sys.executable).with_name("uv")), "pip", "install", "--python", environment.python, *given)
    except (AssertionError, FileNotFoundError):
        _made(*PIP, "--python", environment.python, "install", *given)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    home = tmp_path_factory.mktemp("wheel")
    source = home / "source"
    for name in (*MADE_OF, "jobs", "conf"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            source.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source)
    _made(*PIP, "wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={home}/dist", str(source))
    shutil.rmtree(source)
    (wheel,) = (home / "dist").iterdir()
    found = Environment(home)
    _made(sys.executable, "-m", "venv", "--without-pip", f"{home}/environment")
    _installs(found, f"{wheel}[server]")
    return found


@pytest.fixture
def started(environment: Environment) -> Iterator[str]:
    """What the command says that starts a cluster."""
    directory = environment.home / "cluster"
    try:
        yield environment.types("spark-replication start --directory cluster --detach")
        environment.types("spark-replication stop --directory cluster")
    finally:
        LockedProcess(directory / "starter").stop(COMMAND_S)


def test_five_commands_start_a_cluster_write_read_and_look_at_it(environment: Environment, started: str) -> None:
    (address,) = set(re.findall(r"zk://\S+", started))
    environment.variables["SPARK_REPLICATION_BOOTSTRAP"] = address
    environment.types("spark-replication topics create orders --schema id:int64,amount:float64")
    environment.types("spark-replication produce orders", given='{"id": 7, "amount": 9.5}\n')
    (row,) = json.loads(environment.types("spark-replication consume orders --format json"))
    assert (row["id"], row["amount"]) == (7, 9.5)
    (page,) = set(re.findall(r"http://\S+", started))
    with urllib.request.urlopen(page, timeout=COMMAND_S) as answer:
        assert b"<title>spark_replication</title>" in answer.read()
    assert environment.types("spark-replication health").startswith("healthy")
    assert environment.types("spark-replication guide operate").startswith("# When something is wrong")


ALL_READ = """
until spark-replication groups --format json | tr -d ' \\n' | grep '"members":{},"partitions":4,"lag_records":0,'
do sleep 0.2; done
"""


def test_two_workers_share_a_topic_and_one_is_killed_as_the_guide_prints_it(environment: Environment) -> None:
    begun = printed("groups", "spark-replication start --directory cluster --detach")
    killed = printed("groups", "kill -9 $!")
    assert len([line for line in begun if line.startswith(("spark-replication", "seq"))]) == 7
    folder = environment.home / "story"
    folder.mkdir()
    script = [
        *("set -e -o pipefail; cd story", *begun, ALL_READ.format(2)),
        "spark-replication groups describe etl --format json > described.json",
        *(*killed, ALL_READ.format(1)),
        "kill -INT $(jobs -p | head -n 1); wait $(jobs -p | head -n 1)",
    ]
    try:
        said = environment.runs("bash", "-c", "\n".join(script))
        environment.types("spark-replication stop --directory story/cluster")
    finally:
        LockedProcess(folder / "cluster" / "starter").stop(COMMAND_S)
    shown = {name: (folder / name).read_text().splitlines()[1:] for name in ("one.txt", "two.txt")}
    ids = {name: {int(line.split()[2]) for line in lines} for name, lines in shown.items()}
    assert {*ids["one.txt"], *ids["two.txt"]} == {*range(1, 20_001)}, "nothing is left out"
    described = json.loads((folder / "described.json").read_text())
    assert [len(each["partitions"]) for each in described["members"]] == [2, 2]
    later = {line.split()[0] for line in shown["one.txt"] if int(line.split()[2]) > 10_000}
    assert len(later) == 4, "the first reads on what the second had"
    assert 'spark_replication_group_lag_records{group="etl",topic="orders"}' in said


def test_a_topic_becomes_a_table_as_the_guide_prints_it(environment: Environment) -> None:
    begun = printed("topic-tables", "spark-replication start --directory lake --detach")
    assert len([line for line in begun if line.startswith(("spark-replication", "seq"))]) == 5
    (looked,) = [block.text for block in BLOCKS if block.page == "topic-tables" and block.language == "python"]
    folder = environment.home / "tables"
    folder.mkdir()
    try:
        said = environment.runs("bash", "-c", "\n".join(("set -e -o pipefail; cd tables", *begun)))
        assert [line.split()[:2] for line in said.splitlines() if "clicks" in line][-2:] == [["│", "clicks"]] * 2
        found = environment.runs("bash", "-c", f"cd tables && {environment.python} -c '{looked}'")
        partitions = ast.literal_eval(found.splitlines()[-1])
        assert sum(each["rows"] for each in partitions) == 1_000
        environment.types("spark-replication table verify clicks --bootstrap delta:tables/lake/mirror")
        environment.types("spark-replication stop --directory tables/lake")
    finally:
        LockedProcess(folder / "lake" / "starter").stop(COMMAND_S)
    goes_on_with_the_tables(environment, folder)


def goes_on_with_the_tables(environment: Environment, folder: Path) -> None:
    for each in (folder / "lake").iterdir():
        if each.is_dir() and each.name != "tables":
            shutil.rmtree(each)
    begun = printed("topic-tables", "spark-replication start --directory anew")
    look = "spark-replication table restore --dry-run --format json"
    named = "import json, sys; print(json.load(sys.stdin)[0]['cluster_id'])"
    *first, last = begun
    script = [
        *first,
        f'CLUSTER_ID=$({look} | {environment.python} -c "{named}")',
        last.replace("CLUSTER_ID", "$CLUSTER_ID"),
    ]
    try:
        said = environment.runs("bash", "-c", "\n".join(("set -e -o pipefail; cd tables", *script)))
        starts = said.splitlines()[-1].removeprefix("clicks has 2 partitions, which go on at ").split(", ")
        assert sum(map(int, starts)) == 1_000
        environment.types("spark-replication table verify clicks --bootstrap delta:tables/anew/mirror")
        environment.types("spark-replication stop --directory tables/anew")
    finally:
        LockedProcess(folder / "anew" / "starter").stop(COMMAND_S)


def _names_in(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def test_what_is_printed_of_python_runs(environment: Environment) -> None:
    blocks = [
        block.text
        for block in BLOCKS
        if block.page in PAGES and block.language == "python" and why_not_run(block) is None
        if not OTHERS & set(_names_in(block.text))
    ]
    assert len(blocks) > len(PAGES)
    _installs(environment, *re.findall(r"`pip install (\w+)`", (GUIDE / "python.md").read_text()))
    program = Path(__file__).with_name("printed_python.py")
    said = environment.runs(environment.python, str(program), given=json.dumps(blocks))
    assert said.splitlines()[-1].startswith(f"done, by {environment.home}/environment/lib/")
