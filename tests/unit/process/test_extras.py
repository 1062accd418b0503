"""What a client does without: the packages of extras, and what is said where one is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import spark_replication as sr
from spark_replication.errors import NotInstalled
from spark_replication.process.extras import EXTRA_OF, importing_for, require_server

# A process that has what a client has.
CLIENT = f"import sys\nsys.modules.update(dict.fromkeys({sorted(EXTRA_OF)}))\n"


def ran(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CLIENT + script], capture_output=True, text=True, check=False)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return ran(
        f"sys.argv = ['spark-replication', *{arguments}]\nfrom spark_replication.admin.cli.main import main\nmain()"
    )


def test_producers_readers_and_notebooks_need_no_extra() -> None:
    done = ran("import spark_replication as sr\nsr.Admin, sr.LocalReader, sr.Plan, sr.Producer, sr.Reader, sr.connect")
    assert done.returncode == 0, done.stderr


def test_commands_that_ask_a_cluster_need_no_extra() -> None:
    names = ["topics", "produce", "consume", "health", "partitions", "reassign", "acls", "settings", "metrics"]
    done = ran(
        "from spark_replication.admin.cli.main import cli\n"
        f"for name in {names}: cli([name, '--help'], prog_name='spark-replication', standalone_mode=False)"
    )
    assert done.returncode == 0, done.stderr
    assert [name for name in names if f"Usage: spark-replication {name} " not in done.stdout] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (("page", "--bootstrap", "127.0.0.1:1"), "uvicorn", "server"),
        (("certificates", "ca", "."), "cryptography", "salted"),
        (("start",), "deltalake", "server"),
        (("mirror", "rebuild"), "deltalake", "delta"),
    ],
)
def test_a_command_that_needs_one_names_it(arguments: tuple[str, ...], module: str, extra: str) -> None:
    done = command(*arguments)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        f"needs {module}, which is not installed: pip install 'spark_replication[{extra}]'"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("session", "py4j", "spark"),
        ("SparkCluster", "prometheus_client", "server"),
        ("LeaderTable", "deltalake", "delta"),
    ],
)
def test_a_public_name_that_needs_one_names_it(name: str, module: str, extra: str) -> None:
    done = ran(
        f"import spark_replication as sr\ntry:\n    sr.{name}\nexcept sr.errors.NotInstalled as error: print(error)"
    )
    assert done.stdout == (
        f"NOT_INSTALLED: sr.{name} needs {module}, which is not installed: pip install 'spark_replication[{extra}]'\n"
    )


def test_another_module_that_is_missing_is_no_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), importing_for("it"):
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="nameless"), importing_for("it"):
        raise ModuleNotFoundError("nameless")


def test_a_cluster_starts_where_all_is_there() -> None:
    require_server("a cluster")


def test_a_cluster_without_one_does_not_begin_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "spark_replication.process.extras.find_spec", lambda name: None if name == "starlette" else name
    )
    with pytest.raises(NotInstalled, match=r"a cluster needs starlette, .*\[server\]"):
        sr.LocalCluster.start()
