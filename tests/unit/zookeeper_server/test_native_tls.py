"""Which BoringSSL of Spark's jars a server is given: this machine's, or none."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_replication.zookeeper_server.layout import ServerPlace
from spark_replication.zookeeper_server.native_tls import native_tls_jar, native_tls_options
from spark_replication.zookeeper_server.server import find_jars
from spark_replication.zookeeper_server.settings import server_settings

NAMES = ("linux-aarch_64", "linux-x86_64", "osx-aarch_64", "osx-x86_64", "windows-x86_64")
JARS = [f"netty-tcnative-boringssl-static-2.0.76.Final-{name}.jar" for name in NAMES]


class Machine(NamedTuple):
    system: str = "Linux"
    machine: str = "x86_64"
    library: str = "glibc"


def runs_on(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    monkeypatch.setattr(platform, "system", lambda: machine.system)
    monkeypatch.setattr(platform, "machine", lambda: machine.machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: (machine.library, ""))


def jars_in(directory: Path) -> Path:
    for name in (*JARS, "netty-tcnative-classes-2.0.76.Final.jar"):
        (directory / name).touch()
    return directory


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        (Machine(), JARS[1]),
        (Machine(machine="aarch64"), JARS[0]),
        (Machine("Darwin", "arm64", ""), JARS[2]),
        (Machine("Darwin", "x86_64", ""), JARS[3]),
        (Machine(library=""), None),
        (Machine("Windows", "amd64", ""), None),
        (Machine(machine="riscv64"), None),
    ],
)
def test_it_is_that_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine, name: str | None
) -> None:
    runs_on(monkeypatch, machine)
    assert native_tls_jar(jars_in(tmp_path), tmp_path) == (None if name is None else tmp_path / name)


def test_without_a_jar_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_on(monkeypatch, Machine())
    assert native_tls_jar(tmp_path, tmp_path) is None


def test_nothing_is_unpacked_where_nothing_may_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_on(monkeypatch, Machine())
    asked = []

    class Mounted(NamedTuple):
        f_flag: int = os.ST_NOEXEC | os.ST_NOSUID

    def mounted(path: Path) -> Mounted:
        asked.append(path)
        return Mounted()

    monkeypatch.setattr(os, "statvfs", mounted)
    directory = tmp_path / "server"
    assert native_tls_jar(jars_in(tmp_path), directory) is None
    assert asked == [directory]


def test_sparks_jars_have_one_for_this_machine(tmp_path: Path) -> None:
    found = native_tls_jar(find_jars(), tmp_path)
    assert (found is not None) == (platform.libc_ver()[0] == "glibc")


def test_it_is_unpacked_where_nobody_else_may_write(tmp_path: Path) -> None:
    assert native_tls_options(tmp_path) == (f"-Dio.netty.native.workdir={tmp_path}",)


@pytest.mark.parametrize(("is_native", "provider"), [(True, "OPENSSL"), (False, "JDK")])
def test_the_server_is_told_which_it_has(tmp_path: Path, is_native: bool, provider: str) -> None:
    place = ServerPlace(number=1, directory=tmp_path, client=2181)
    settings = server_settings(place, [place], tls=tmp_path, is_native=is_native, has_secret=False)
    assert settings["ssl.sslProvider"] == provider
