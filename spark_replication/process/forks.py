"""Whether gRPC works in this process: not in a fork of one that had used it.

A fork has a copy of gRPC's state, and none of its threads. The first call then waits for ever, beyond its deadline, or
ends the process by a signal. So a client in such a fork is refused, in one sentence and at once.
"""

from __future__ import annotations

import os

from spark_replication.errors import InvalidRequest


class _Grpc:
    is_used = False  # by this process, or by one that it is a fork of
    is_lost = False


def uses_grpc() -> None:
    """Call this before gRPC is used: a fork from here on cannot use it."""
    _Grpc.is_used = True


def require_grpc() -> None:
    """Raise InvalidRequest in a fork of a process that had used gRPC."""
    if _Grpc.is_lost:
        raise InvalidRequest(
            f"process {os.getpid()} is a fork of one that had spoken to a cluster, and gRPC does not work in such a "
            'fork: start it by spawn or forkserver, as multiprocessing.get_context("spawn") does'
        )


def _forked() -> None:
    _Grpc.is_lost = _Grpc.is_used


os.register_at_fork(after_in_child=_forked)
