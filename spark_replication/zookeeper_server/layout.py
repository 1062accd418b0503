"""The servers of a directory and their ports: chosen once, since clients keep the addresses.

A single server lives in `<directory>` itself, and `port` there holds its port. Three servers live in `server-<n>/`
each, and `ensemble.json` holds all ports. The number never changes: a single server and an ensemble do not read each
other's data.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import msgspec

from spark_replication.errors import CorruptState, InvalidRequest, StartFailed
from spark_replication.model import Value, decode, encode, require
from spark_replication.process.loopback import free_ports
from spark_replication.process.whole_files import replace_text

HOST = "127.0.0.1"
SERVER_COUNTS = (1, 3)  # two servers survive no more failures than one does
PORT_FILE = "port"
ENSEMBLE_FILE = "ensemble.json"
SERVER_DIRECTORY = "server-{}"


class Peering(msgspec.Struct, frozen=True, kw_only=True):
    """The ports by which the servers of an ensemble talk to each other."""

    #: For replicating what was written.
    quorum: int
    #: For electing a leader.
    election: int


class EnsembleServer(msgspec.Struct, frozen=True, kw_only=True):
    client: int
    peering: Peering


class Ensemble(Value, frozen=True, kw_only=True):
    """<directory>/ensemble.json: the ports of all servers, in the order of their numbers from 1."""

    servers: tuple[EnsembleServer, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.servers) in SERVER_COUNTS, f"an ensemble has no {len(self.servers)} servers")


class ServerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where one server lives, and its ports."""

    number: int
    directory: Path
    #: The port for clients.
    client: int
    #: None for a single server.
    peering: Peering | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.client}"

    @property
    def shared(self) -> Path:
        """The directory of all servers of this ZooKeeper."""
        return self.directory if self.peering is None else self.directory.parent

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.client,) if self.peering is None else (self.client, self.peering.quorum, self.peering.election)


def check_servers(directory: Path | None, servers: int) -> None:
    """Raise InvalidRequest if no directory may have this number of servers, StartFailed if this one was made with
    another number."""
    if servers not in SERVER_COUNTS:
        raise InvalidRequest(f"{servers} ZooKeeper servers: there may be {' or '.join(map(str, SERVER_COUNTS))}")
    made_with = None if directory is None else servers_made(directory)
    if made_with not in (None, servers):
        raise StartFailed(
            f"{directory} was made with {made_with} ZooKeeper server{'s' * (made_with != 1)}, not {servers}: start "
            f"{made_with} there, or take another directory (a SparkCluster uses an ensemble by zookeeper.connect)"
        )


def servers_made(directory: Path) -> int | None:
    """The number of servers that the directory was made with; None if it is new. Its data tells, too, since a person
    may have removed the file with the ports to have others chosen."""
    if (directory / ENSEMBLE_FILE).exists() or len(server_directories(directory)) > 1:
        return max(SERVER_COUNTS)
    if (directory / PORT_FILE).exists() or (directory / "data").exists():
        return 1
    return None


def stored_places(directory: Path) -> tuple[ServerPlace, ...] | None:
    """The places of the servers; None if their ports have not been chosen yet."""
    with contextlib.suppress(FileNotFoundError):
        path = directory / ENSEMBLE_FILE
        return _places(directory, decode(path.read_bytes(), Ensemble, str(path)))
    with contextlib.suppress(FileNotFoundError):
        path = directory / PORT_FILE
        try:
            return (ServerPlace(number=1, directory=directory, client=int(path.read_text())),)
        except ValueError as error:
            raise CorruptState(f"{path} holds no port: remove it, to let ZooKeeper choose another") from error
    return None


def choose_places(directory: Path, servers: int) -> tuple[ServerPlace, ...]:
    """Choose ports that are free, and store them for all later starts."""
    if servers == 1:
        (port,) = free_ports(1)
        replace_text(directory / PORT_FILE, str(port))
        return (ServerPlace(number=1, directory=directory, client=port),)
    ports = iter(free_ports(3 * servers))
    chosen = Ensemble(
        servers=tuple(
            EnsembleServer(client=client, peering=Peering(quorum=quorum, election=election))
            for client, quorum, election in zip(ports, ports, ports, strict=True)
        )
    )
    replace_text(directory / ENSEMBLE_FILE, encode(chosen).decode())
    return _places(directory, chosen)


def forget_places(directory: Path) -> None:
    """Remove the stored ports, so that others are chosen. Only for ports that no client has heard of."""
    (directory / ENSEMBLE_FILE).unlink(missing_ok=True)
    (directory / PORT_FILE).unlink(missing_ok=True)


def server_directories(directory: Path) -> list[Path]:
    """The folders where servers may live, whatever number the directory was made with."""
    return [directory, *sorted(directory.glob(SERVER_DIRECTORY.format("*")))]


def ports_file(directory: Path) -> Path:
    """The file that a person removes to have other ports chosen."""
    ensemble = directory / ENSEMBLE_FILE
    return ensemble if ensemble.exists() else directory / PORT_FILE


def taken_port(place: ServerPlace) -> int | None:
    """The first of the server's ports that another process has; None if all are free."""
    for port in place.ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                return port
    return None


def _places(directory: Path, ensemble: Ensemble) -> tuple[ServerPlace, ...]:
    return tuple(
        ServerPlace(
            number=number,
            directory=directory / SERVER_DIRECTORY.format(number),
            client=server.client,
            peering=server.peering,
        )
        for number, server in enumerate(ensemble.servers, 1)
    )
