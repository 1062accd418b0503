"""The page of whoever runs a cluster, which goes on whether or not the page can be served. It loads little itself."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spark_replication.client.admin import Admin
from spark_replication.config import Settings
from spark_replication.errors import ReplicationError
from spark_replication.messages.actions import DESCRIBE_PAGE
from spark_replication.messages.observing import PageDescription
from spark_replication.process.loopback import port_again
from spark_replication.transport.actions import Handled, handled
from spark_replication.transport.security import Security

if TYPE_CHECKING:
    from spark_replication.page.server import PageServer
    from spark_replication.page.watch import Watch

LOOPBACK = "127.0.0.1"
DEADLINE_MS = 5_000  # of a question to the cluster: time for a controller that hangs, and then for a broker
URL_BYTES_MAX = 1_000
FILE = "page"  # in the directory of the process that serves it

log = logging.getLogger(__name__)


class ServedPage:
    """directory: its file `page` tells other processes where it is served; after a restart that is there again."""

    def __init__(self, bootstrap: str, settings: Settings, security: Security, *, host: str, directory: Path) -> None:
        # Here, since uvicorn and starlette are needed for this alone.
        from spark_replication.page.server import PageServer

        file = directory / FILE
        self._server: PageServer | None = None
        self._admin: Admin | None = None
        if not settings.page_enabled:
            _remove(file)
            return
        where = host if security.token is not None else LOOPBACK
        port = settings.page_port or port_again(where, _port_of(read_url(directory)))
        try:
            self._admin = Admin(bootstrap, security=security, deadline_ms=DEADLINE_MS)
            self._server = PageServer.start(self._admin, host=where, port=port, security=security)
            file.write_text(f"{self._server.url}\n", encoding="utf-8")
        except (ReplicationError, OSError) as error:
            log.warning("there is no page: %s", error)
            self.stop()
            _remove(file)

    @property
    def url(self) -> str | None:
        """None: it is not served."""
        return None if self._server is None else self._server.url

    @property
    def watch(self) -> Watch | None:
        """What is shown, for who shows it elsewhere, too. None: the page is not served."""
        return None if self._server is None else self._server.watch

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        if self._admin is not None:
            self._admin.close()


def page_action(url: Callable[[], str | None]) -> Handled:
    """Tells where the page is served. url: called for each request, since the page starts after the server of this."""
    return handled(DESCRIBE_PAGE, lambda _asked: PageDescription(url=url()))


def read_url(directory: Path) -> str | None:
    """Where the page was served last, as its server wrote it; None: nowhere."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = (directory / FILE).read_text(encoding="utf-8")[:URL_BYTES_MAX].strip()
        return found or None
    return None


def _port_of(url: str | None) -> int:
    text = "" if url is None else url.rstrip("/").rpartition(":")[2]
    return int(text) if text.isascii() and text.isdecimal() and int(text) < 1 << 16 else 0


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
