"""What the servers of an ensemble prove to each other: nobody else on the host votes, or is sent what they store.

`quorum.jaas` in the ensemble's directory, as ZooKeeper reads it. It is made while no server lives: servers that ran
before there was one go on without it, since one that has it takes none that has not.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from spark_replication.process.files import make_secret

FILE = "quorum.jaas"
_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule required"

#: For zoo.cfg.
SETTINGS: Mapping[str, str] = {
    "quorum.auth.enableSasl": "true",
    "quorum.auth.learnerRequireSasl": "true",
    "quorum.auth.serverRequireSasl": "true",
}


def make_quorum_secret(directory: Path) -> None:
    """Make the secret of this ensemble, unless it is there."""
    secret = secrets.token_urlsafe(32)
    make_secret(
        directory / FILE,
        f'QuorumServer {{\n  {_MODULE}\n  user_quorum="{secret}";\n}};\n'
        f'QuorumLearner {{\n  {_MODULE}\n  username="quorum"\n  password="{secret}";\n}};',
    )


def java_options(secret: Path) -> tuple[str, ...]:
    # ZooKeeper takes its own mode of proof, DIGEST-MD5, for none that FIPS allows, and fails without another.
    return f"-Djava.security.auth.login.config={secret}", "-Dzookeeper.fips-mode=false"


def quorum_secret(directory: Path) -> Path | None:
    """The file of this ensemble; None if it has none."""
    file = directory / FILE
    return file if file.exists() else None
