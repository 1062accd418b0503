"""Serves the page on a thread and a port of its own."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

import uvicorn

from spark_replication.client.reading.reader import Reader
from spark_replication.errors import StartFailed
from spark_replication.page.app import Bell, Pages
from spark_replication.page.asking import Cluster
from spark_replication.page.connections import FewWarnings, PageConnection
from spark_replication.page.document import Document
from spark_replication.page.entry import LOGIN, Entry, LoginLink
from spark_replication.page.watch import SELDOM_S, Watch
from spark_replication.process.loopback import is_loopback, require_loopback
from spark_replication.transport.security.security import Security

BACKLOG = 64
ENDING_S = 1  # for requests that are under way
STOP_S = 5.0
START_S = 10.0

log = logging.getLogger(__name__)

_FEW_WARNINGS = FewWarnings()


class PageServer:
    """Use `start`. The caller closes the cluster and the reader, after `stop`."""

    def __init__(
        self,
        cluster: Cluster,
        reader: Reader,
        listener: socket.socket,
        host: str,
        security: Security,
        say: Callable[[str], None],
    ) -> None:
        bell = Bell()
        self._bell = bell
        self.watch = Watch(cluster, bell.ring, seldom_s=SELDOM_S)
        # On loopback nobody listens in: TLS is not needed.
        context = None if security.tls is None or is_loopback(host) else security.tls.as_server
        port = listener.getsockname()[1]
        self.url = f"{'http' if context is None else 'https'}://{_named(host)}:{port}/"
        self._say = say
        self._link = None
        if security.tokens is None and security.knows_clients:
            self._link = LoginLink(f"{self.url.rstrip('/')}{LOGIN}", say)
        tokens = security.tokens
        if tokens is not None and security.super_users:  # it shows everything
            tokens = tokens.only(security.super_users)
        document = Document()
        entry = Entry(
            Pages(self.watch, reader, bell, document).app(),
            document,
            self._link or tokens,
            time.time,
            port=port,
            is_encrypted=context is not None,
        )
        config = uvicorn.Config(
            entry,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            http=PageConnection,
            timeout_graceful_shutdown=ENDING_S,
        )
        config.load()
        config.ssl = context
        logging.getLogger("uvicorn.error").addFilter(_FEW_WARNINGS)
        self._listener = listener
        self._server = uvicorn.Server(config)
        # uvicorn handles signals on the main thread only, so it leaves them alone here.
        self._thread = threading.Thread(target=self._serve, name="page-server", daemon=True)

    @classmethod
    def start(
        cls,
        cluster: Cluster,
        reader: Reader,
        *,
        host: str,
        port: int,
        security: Security,
        say: Callable[[str], None],
    ) -> PageServer:
        """Serve the page at this host and port, 0 for any that is free. The host is loopback, unless there is a token
        that may be sent there. Raises StartFailed if that port cannot be had.

        reader: what viewers may see of records is what it may read.
        say: called with what to open: the page's URL, or each link that lets one browser in.
        """
        if security.tokens is None:
            require_loopback(host, "the page is for loopback alone without a token. Set security.token.file")
        elif not is_loopback(host):
            security.require_may_bind(host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise StartFailed(
                f"no page on {host}:{port}: {error.strerror}. Is the port in use? See page.port"
            ) from error
        served = cls(cluster, reader, listener, host, security, say)
        served._begin()
        return served

    def _begin(self) -> None:
        self.watch.start()
        self._thread.start()
        deadline_s = time.monotonic() + START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        if not self._server.started:
            self.stop()
            raise StartFailed(f"the page at {self.url} was not served within {START_S:.0f} s: see the log")
        if self._link is None:
            self._say(self.url)
        else:
            self._link.tell()

    def _serve(self) -> None:
        self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        self._server.should_exit = True
        self._bell.end()
        self._thread.join(STOP_S)
        self._listener.close()
        self.watch.stop()
        if self._thread.is_alive():
            log.warning("the page's thread is left behind: it has not ended in %s s", STOP_S)


def _named(host: str) -> str:
    return f"[{host}]" if ":" in host else host
