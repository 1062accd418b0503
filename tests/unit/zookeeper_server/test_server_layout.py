"""Where the servers of a directory lie, and at which ports: chosen once."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from spark_replication.errors import CorruptState, InvalidRequest, StartFailed
from spark_replication.zookeeper_server.layout import (
    ServerPlace,
    check_servers,
    choose_places,
    forget_places,
    server_directories,
    stored_places,
    taken_port,
)


@pytest.mark.parametrize("servers", [1, 3])
def test_what_was_chosen_is_found_again(tmp_path: Path, servers: int) -> None:
    assert stored_places(tmp_path) is None
    chosen = choose_places(tmp_path, servers)
    assert stored_places(tmp_path) == chosen
    assert [place.number for place in chosen] == list(range(1, servers + 1))
    ports = [port for place in chosen for port in place.ports]
    assert len(ports) == len(set(ports)) == (1 if servers == 1 else 9)
    forget_places(tmp_path)
    assert stored_places(tmp_path) is None


def test_one_server_lies_in_the_directory_itself_and_three_below_it(tmp_path: Path) -> None:
    for name in ("one", "three"):
        (tmp_path / name).mkdir()
    assert [place.directory for place in choose_places(tmp_path / "one", 1)] == [tmp_path / "one"]
    places = choose_places(tmp_path / "three", 3)
    assert [place.directory.relative_to(tmp_path) for place in places] == [
        Path("three/server-1"),
        Path("three/server-2"),
        Path("three/server-3"),
    ]
    assert server_directories(tmp_path / "three") == [tmp_path / "three"]
    for place in places:
        place.directory.mkdir()
    assert server_directories(tmp_path / "three") == [tmp_path / "three", *(place.directory for place in places)]


@pytest.mark.parametrize("servers", [-1, 0, 2, 4, 5])
def test_there_may_be_one_or_three(tmp_path: Path, servers: int) -> None:
    for directory in (None, tmp_path):
        with pytest.raises(InvalidRequest, match=f"{servers} ZooKeeper servers: there may be 1 or 3"):
            check_servers(directory, servers)


@pytest.mark.parametrize(("made_with", "asked"), [(1, 3), (3, 1)])
def test_a_directory_keeps_its_number_of_servers_even_without_its_ports(
    tmp_path: Path, made_with: int, asked: int
) -> None:
    check_servers(None, asked)
    check_servers(tmp_path, asked)
    for place in choose_places(tmp_path, made_with):
        (place.directory / "data").mkdir(parents=True)
    for forget in (False, True):
        if forget:
            forget_places(tmp_path)
        check_servers(tmp_path, made_with)
        with pytest.raises(StartFailed, match=rf"was made with {made_with} ZooKeeper server.*not {asked}: start"):
            check_servers(tmp_path, asked)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "x"),
        ("ensemble.json", '{"v":1,"servers":[{"client":1}]}'),
        ("ensemble.json", '{"v":1,"servers":[]}'),
    ],
)
def test_ports_that_do_not_parse_name_their_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CorruptState, match=f"{tmp_path / name}"):
        stored_places(tmp_path)


def test_a_port_that_another_process_has_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        place = ServerPlace(number=1, directory=tmp_path, client=port)
        assert taken_port(place) == port
    assert taken_port(place) is None
