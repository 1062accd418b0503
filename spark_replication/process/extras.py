"""Packages that a client does without, and the extra of spark_replication that brings each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from spark_replication.errors import NotInstalled

#: The extra to name where a module is missing. A package that several of them bring stands with the smallest.
EXTRA_OF = {
    "numpy": "spark",
    "pandas": "spark",
    "delta": "spark",
    "deltalake": "delta",
    "pyspark": "spark",
    "py4j": "spark",
    "cryptography": "salted",
    "prometheus_client": "server",
    "starlette": "server",
    "uvicorn": "server",
    "yaml": "server",
    "altair": "notebook",
    "vl_convert": "notebook",
}
#: What the processes of a cluster import: each of them would end at its start.
SERVER = ("deltalake", "prometheus_client", "pyspark", "starlette", "uvicorn")


@contextmanager
def importing_for(what: str) -> Iterator[None]:
    """Raise NotInstalled where an import fails of what an extra brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRA_OF:
            raise
        raise _needs(what, module, EXTRA_OF[module]) from error


def require_server(what: str) -> None:
    """Raise NotInstalled unless all is there that the processes of a cluster import."""
    for module in SERVER:
        if find_spec(module) is None:
            raise _needs(what, module, "server")


def _needs(what: str, module: str, extra: str) -> NotInstalled:
    return NotInstalled(f"{what} needs {module}, which is not installed: pip install 'spark_replication[{extra}]'")
