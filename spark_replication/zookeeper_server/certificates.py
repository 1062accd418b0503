"""Who may speak to an embedded ZooKeeper at all: whoever has one of the certificates of its directory.

| file in `<directory>/tls` | is                                                                    |
| ------------------------- | --------------------------------------------------------------------- |
| ca.pem                    | whom servers and clients trust. Its key is gone: nobody signs another |
| server.pem                | the servers' certificate, for this host, and its key                  |
| CLIENT_FILE, and its key  | what each client shows                                                |

Rules:
- All of them are made at once, or none, and their user alone may read them.
- Servers of a directory that has them speak TLS alone, from their next start on, also if there is no security any more:
  what clients were told to trust holds on.
- Servers that were started without them are not adopted (`embedded`): whoever takes the port of such a server is sent
  the login of its clients.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from spark_replication.process.files import own_directory
from spark_replication.zk.login import NOBODY, Login
from spark_replication.zookeeper_server.layout import stored_places

ZOOKEEPER = "zookeeper"  # in the data directory of a cluster
TLS_DIRECTORY = "tls"
CA_FILE = "ca.pem"
SERVER_FILE = "server.pem"
HOSTS = ("127.0.0.1", "localhost")
CLIENT = "client"
CLIENT_FILE, CLIENT_KEY_FILE = "client.pem", "client.key"  # as certificates of CLIENT are named


class ClientFiles(NamedTuple):
    """As zookeeper.tls.… names them."""

    ca: str
    certificate: str
    key: str


def make_certificates(directory: Path) -> None:
    """Make the certificates of this directory, unless they are there. If another process makes them at this time, the
    first ones count."""
    if tls_directory(directory) is not None:
        return
    # Loading it takes a sixth of what a broker's start takes: only for whoever makes certificates.
    from spark_replication.process.certificates import CA_DAYS, ca_in, host_certificate, principal_certificate

    own_directory(directory)
    made = Path(tempfile.mkdtemp(prefix=f"{TLS_DIRECTORY}-", dir=directory))  # which other users may not enter
    try:
        ca, (_, ca_key) = ca_in(made, "embedded ZooKeeper")
        certificate, key = host_certificate(made, ca, HOSTS, CA_DAYS)
        principal_certificate(made, ca, CLIENT, CA_DAYS)
        key.write_bytes(certificate.read_bytes() + key.read_bytes())  # ZooKeeper takes both from one file
        key.rename(made / SERVER_FILE)
        certificate.unlink()
        ca_key.unlink()
        _put(made, directory)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def tls_directory(directory: Path) -> Path | None:
    """Where the certificates are; None if there are none, and servers serve whoever reaches them."""
    files = directory / TLS_DIRECTORY
    return files if files.is_dir() else None


def client_files(directory: Path) -> ClientFiles | None:
    files = tls_directory(directory)
    if files is None:
        return None
    return ClientFiles(str(files / CA_FILE), str(files / CLIENT_FILE), str(files / CLIENT_KEY_FILE))


def client_login(directory: Path) -> Login:
    """What the servers of this directory ask of a client, and no more: a login is not in it."""
    files = client_files(directory)
    if files is None:
        return NOBODY
    return Login(tls=(("ca", files.ca), ("certfile", files.certificate), ("keyfile", files.key)))


def login_at(address: str, data_directory: Path) -> Login:
    """The `client_login` of the embedded ZooKeeper of a cluster's data directory, if that is who has this address; else
    NOBODY."""
    directory = data_directory / ZOOKEEPER
    places = stored_places(directory)
    if places is None or not {place.address for place in places}.intersection(address.split(",")):
        return NOBODY
    return client_login(directory)


def _put(made: Path, directory: Path) -> None:
    try:
        made.rename(directory / TLS_DIRECTORY)
    except OSError:  # a folder that is not empty stays
        if tls_directory(directory) is None:
            raise
