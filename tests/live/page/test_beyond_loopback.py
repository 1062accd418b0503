"""The page beyond its own host: who has no token is told nothing, and without security nobody there is served."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.config import settings_from
from spark_replication.page.served import ServedPage
from tests.unit.page.viewer import Viewer
from tests.unit.transport.certificates import Authority, tls_settings
from tests.unit.transport.test_security import SECRET, token_settings

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

EVERYWHERE = "0.0.0.0"
TOPIC = "not-for-strangers"
PATHS = (
    *("/", "/healthz", "/readyz", "/metrics", "/brokers/1/metrics", "/api/view", f"/api/topics/{TOPIC}"),
    *(f"/api/topics/{TOPIC}/0", "/api/brokers/1", "/api/events", "/api/settings", "/api/acls", "/none"),
)
WITH_TOKEN = {"Authorization": f"Bearer {SECRET}"}
TIMEOUT_S = 60.0
REFUSED_S = 30.0


@pytest.fixture(scope="module")
def own_address() -> str:
    """Of this host, beyond loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of documentation: a datagram socket sends nothing by that
        except OSError:
            pytest.skip("this host has no address beyond loopback")
        return str(probe.getsockname()[0])


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {**token_settings(tmp_path_factory.mktemp("secret")), "security.token.in.clear": True}


@pytest.fixture(scope="module")
def cluster(secured: dict[str, Any]) -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=1, config=secured) as cluster:
        cluster.admin.create_topic(TOPIC, pa.schema([("id", pa.int64())]), partitions=1, replication_factor=1)
        yield cluster


def page_command(bootstrap: str, host: str, settings: Mapping[str, Any]) -> subprocess.Popen[str]:
    given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()}
    assigned = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "spark_replication", "page", "-b", bootstrap, "--host", host, *assigned]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def served(cluster: sr.LocalCluster, host: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Where it says that it serves."""
    with page_command(cluster.bootstrap, host, settings) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("is_everywhere", [False, True])
def test_with_a_token_it_serves_who_has_that(
    cluster: sr.LocalCluster, secured: dict[str, Any], own_address: str, *, is_everywhere: bool
) -> None:
    with served(cluster, EVERYWHERE if is_everywhere else own_address, secured) as url:
        viewer = Viewer(f"http://{own_address}:{urlsplit(url).port}/")
        others: tuple[dict[str, str], ...] = (
            {},
            {"Authorization": "Bearer another"},
            {"Authorization": SECRET},
            {"Host": "127.0.0.1"},
            {"Cookie": f"spark_replication_page={SECRET}"},
        )
        for headers in others:
            for path in (*PATHS, f"/api/view?token={SECRET}"):
                answer = viewer.ask(path, headers=headers)
                assert (answer.status, TOPIC in answer.body.decode()) == (401, False), (path, headers)
        assert viewer.ask("/readyz", headers=WITH_TOKEN).status == 200
        for path in PATHS[:-1]:
            assert viewer.ask(path, headers=WITH_TOKEN).status == 200, path
        assert TOPIC in viewer.ask("/api/view", headers=WITH_TOKEN).json["partitions"]
        admitted = viewer.ask("/login", "POST", f"token={SECRET}")
        cookie = admitted.headers["set-cookie"].partition(";")[0]
        assert viewer.ask("/api/view", headers={"Cookie": cookie}).status == 200
        assert viewer.ask("/login", "POST", "token=another").status == 401


@pytest.mark.parametrize("is_everywhere", [False, True])
def test_without_a_token_it_does_not_start(tmp_path: Path, own_address: str, *, is_everywhere: bool) -> None:
    """Certificates make no difference: a browser shows the page none."""
    host = EVERYWHERE if is_everywhere else own_address
    authority = Authority(tmp_path)
    for settings in ({}, tls_settings(authority, authority.issue("page"), mutual=True)):
        with page_command("127.0.0.1:1", host, settings) as process:
            try:
                said, told = process.communicate(timeout=REFUSED_S)
            finally:
                process.kill()  # one that serves all the same is open to everybody
        assert (process.returncode, said, told.count("\n")) == (1, "", 1), told
        assert f"host '{host}' is {host}, beyond this host: the page is for loopback alone without a token" in told


def test_a_token_is_not_asked_for_in_the_clear(tmp_path: Path, own_address: str) -> None:
    with page_command("127.0.0.1:1", own_address, token_settings(tmp_path)) as process:
        try:
            said, told = process.communicate(timeout=REFUSED_S)
        finally:
            process.kill()
    assert (process.returncode, said) == (1, "")
    assert "over the network in the clear" in told
    page = ServedPage("127.0.0.1:1", settings_from(token_settings(tmp_path)), host=own_address, directory=tmp_path)
    try:
        assert page.wait_known(TIMEOUT_S) is not None
        assert page.url is not None
        assert urlsplit(page.url).hostname == "127.0.0.1"
    finally:
        page.stop()


def test_whoever_runs_a_cluster_without_a_token_serves_it_on_its_own_host_alone(
    tmp_path: Path, secured: dict[str, Any], own_address: str
) -> None:
    page = ServedPage("127.0.0.1:1", settings_from({}), host=own_address, directory=tmp_path)
    try:
        assert page.wait_known(TIMEOUT_S) is not None
        assert page.url is not None
        parts = urlsplit(page.url)
        assert parts.hostname == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError):
            Viewer(f"http://{own_address}:{parts.port}/").ask("/healthz")
    finally:
        page.stop()
    settings = settings_from(secured)
    page = ServedPage("127.0.0.1:1", settings, host=own_address, directory=tmp_path)
    try:
        assert page.wait_known(TIMEOUT_S) is not None
        assert page.url is not None
        assert urlsplit(page.url).hostname == own_address
        assert [Viewer(page.url).ask("/healthz", headers=each).status for each in ({}, WITH_TOKEN)] == [401, 200]
    finally:
        page.stop()
