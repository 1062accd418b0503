"""What a ZooKeeper server reads as it starts: its settings, and how it logs. Each start writes both anew.

Rules:
- With certificates it speaks TLS alone, to clients and to other servers, and takes nobody who shows none. Before that a
  stranger makes it allocate what a handshake needs, and at most HANDSHAKES_MAX of these are under way.
- Without them it serves whoever reaches it: there is no security then.
- Its log has a bound (LOG_BYTES_MAX), and strangers have one of their own in it: of what is said about connections it
  keeps a few lines a minute. So they do not push out what its operators look for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_replication.process.logs import FILE_BYTES_MAX
from spark_replication.zookeeper_server.certificates import CA_FILE, SERVER_FILE
from spark_replication.zookeeper_server.layout import HOST, ServerPlace
from spark_replication.zookeeper_server.quorum_secret import SETTINGS as QUORUM_SECRET

TICK_MS = 500
SESSION_TIMEOUT_MIN_MS = 1_000
SESSION_TIMEOUT_MAX_MS = 60_000
JOIN_TICKS_MAX = 20  # in which a server joins the leader, and gets all that it has missed
SILENCE_TICKS_MAX = 10  # between a leader and a follower, before they part
CONNECTIONS_MAX = 2_000  # from one host; every broker of the cluster may be on it
HANDSHAKES_MAX = 4_000  # ZooKeeper gives each 10 s, and hangs up on whoever comes beyond them
LOG_BYTES_MAX = FILE_BYTES_MAX  # a file of this size is kept as `.1`, and begun anew
LOG_LEVEL = "warn"
CONNECTIONS_SAID_AT_ONCE, CONNECTIONS_SAID_PER_S = 10, 0.1

SECURE_PORT = "secureClientPort"


def server_settings(
    place: ServerPlace, ensemble: Sequence[ServerPlace], *, tls: Path | None, is_native: bool, has_secret: bool
) -> Mapping[str, object]:
    """ensemble: the places of all servers, this one included. tls: the folder of the certificates. is_native: whether
    BoringSSL encrypts what clients are told, or Java. has_secret: whether the servers prove themselves to each other by
    one."""
    return {
        "dataDir": place.directory / "data",
        "tickTime": TICK_MS,
        "minSessionTimeout": SESSION_TIMEOUT_MIN_MS,
        "maxSessionTimeout": SESSION_TIMEOUT_MAX_MS,
        "maxClientCnxns": CONNECTIONS_MAX,
        "maxCnxns": CONNECTIONS_MAX,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr",
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 1,
        **_clients(place, tls, is_native=is_native),
        **_servers(ensemble, tls, has_secret=has_secret),
    }


def _clients(place: ServerPlace, tls: Path | None, *, is_native: bool) -> Mapping[str, object]:
    if tls is None:
        return {"clientPort": place.client, "clientPortAddress": HOST}
    return {
        SECURE_PORT: place.client,
        "secureClientPortAddress": HOST,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "netty.server.outstandingHandshake.limit": HANDSHAKES_MAX,
        # Without it ZooKeeper 3.9 does not heed that limit. It is about a plain port, and there is none.
        "client.portUnification": "true",
        "ssl.sslProvider": "OPENSSL" if is_native else "JDK",
        "ssl.authProvider": "x509",  # else it reads its files again for each connection
        "ssl.clientAuth": "need",
        "ssl.clientHostnameVerification": "false",  # clients serve nobody, so their certificate has no host
        **_files("ssl", tls),
    }


def _servers(ensemble: Sequence[ServerPlace], tls: Path | None, *, has_secret: bool) -> Mapping[str, object]:
    members = {
        f"server.{place.number}": f"{HOST}:{place.peering.quorum}:{place.peering.election}"
        for place in ensemble
        if place.peering is not None
    }
    if not members:
        return {}
    return {
        "initLimit": JOIN_TICKS_MAX,
        "syncLimit": SILENCE_TICKS_MAX,
        **members,
        **(QUORUM_SECRET if has_secret else {}),
        **({} if tls is None else {"sslQuorum": "true", "ssl.quorum.clientAuth": "need", **_files("ssl.quorum", tls)}),
    }


def _files(prefix: str, tls: Path) -> Mapping[str, object]:
    return {
        f"{prefix}.keyStore.location": tls / SERVER_FILE,
        f"{prefix}.keyStore.type": "PEM",
        f"{prefix}.trustStore.location": tls / CA_FILE,
        f"{prefix}.trustStore.type": "PEM",
        f"{prefix}.enabledProtocols": "TLSv1.3",
    }


# They say something of each connection that is none of ours.
_OF_CONNECTIONS = (
    "server.NIOServerCnxn",
    "server.NIOServerCnxnFactory",
    "server.NettyServerCnxn",
    "server.NettyServerCnxnFactory",
    "server.ZooKeeperServer",
    "server.quorum.Leader",
    "server.quorum.LearnerHandler",
    "server.quorum.QuorumCnxManager",
    "server.quorum.auth",
)


def log_settings(path: Path) -> str:
    """The settings of log4j, for a log at `path`."""
    settings: dict[str, object] = {
        "status": "error",
        "appender.file.type": "RollingFile",
        "appender.file.name": "file",
        "appender.file.fileName": path,
        "appender.file.filePattern": f"{path}.%i",
        "appender.file.layout.type": "PatternLayout",
        "appender.file.layout.pattern": "%d{ISO8601} %p %c{1} [%t] %m%n",
        "appender.file.policies.type": "SizeBasedTriggeringPolicy",
        "appender.file.policies.size": LOG_BYTES_MAX,
        "appender.file.strategy.type": "DefaultRolloverStrategy",
        "appender.file.strategy.max": 1,
        "rootLogger.level": LOG_LEVEL,
        "rootLogger.appenderRef.file.ref": "file",
    }
    for number, logger in enumerate(_OF_CONNECTIONS):
        settings |= {
            f"logger.{number}.name": f"org.apache.zookeeper.{logger}",
            f"logger.{number}.level": LOG_LEVEL,
            f"logger.{number}.filter.burst.type": "BurstFilter",
            f"logger.{number}.filter.burst.level": "error",
            f"logger.{number}.filter.burst.rate": CONNECTIONS_SAID_PER_S,
            f"logger.{number}.filter.burst.maxBurst": CONNECTIONS_SAID_AT_ONCE,
        }
    return as_properties(settings)


def as_properties(settings: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
