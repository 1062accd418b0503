"""Whether the server's TLS is BoringSSL, which Spark's jars bring for the machines that Spark knows, or Java's own.

Java is told to compile quickly here, so that a start is short, and its own ciphers are slow then: with 1,000 partitions
a failover took 1.24 times as long as without TLS, with BoringSSL 1.0 times.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

_SYSTEMS = {"Linux": "linux", "Darwin": "osx"}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch_64", "arm64": "aarch_64"}


def native_tls_jar(jars: Path, directory: Path) -> Path | None:
    """The jar of this machine's BoringSSL. None if these jars have none for it, if it would not run with this machine's
    C library, or if nothing may be run in this directory, below which netty unpacks it."""
    system, machine = _SYSTEMS.get(platform.system()), _MACHINES.get(platform.machine())
    has_another_library = system == "linux" and platform.libc_ver()[0] != "glibc"
    if system is None or machine is None or has_another_library or os.statvfs(directory).f_flag & os.ST_NOEXEC:
        return None
    found = sorted(jars.glob(f"netty-tcnative-boringssl-static-[0-9]*-{system}-{machine}.jar"))
    return found[-1] if found else None


def native_tls_options(directory: Path) -> Sequence[str]:
    """Have netty unpack it here, where nobody else may write, and not where everybody may. It removes it once it is
    loaded."""
    return (f"-Dio.netty.native.workdir={directory}",)
