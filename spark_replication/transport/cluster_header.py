"""Which cluster a Flight call is for: a header, which whoever belongs to another cluster refuses.

Addresses outlive brokers. Where one has died, another cluster's may listen, with a topic of the same name: a client
that has not heard of it yet would read that topic, and be told that its records are stored. A call without the header
is served: whoever begins knows no cluster yet, and other programs than these need not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyarrow import flight

from spark_replication.errors import MisroutedCall, ReplicationError

HEADER = "spark-replication-cluster"

Cluster = Callable[[], str]  # its id; empty while it is not known


class ClusterCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Raising here refuses the call, of whatever kind, before its handler hears of it. refused: who counts that."""

    def __init__(self, cluster: Cluster, refused: Callable[[ReplicationError], None]) -> None:
        super().__init__()
        self._cluster = cluster
        self._refused = refused

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> None:
        here = self._cluster()
        meant = {value for name, values in headers.items() if name.lower() == HEADER for value in values}
        if here and meant - {here}:
            error = MisroutedCall(
                f"this is a server of cluster {here}, and the call is for {', '.join(sorted(meant))}, whose server was "
                "at this address before: ask another of its brokers"
            )
            self._refused(error)
            raise flight.FlightServerError(str(error))


class ClusterHeader(flight.ClientMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def start_call(self, info: flight.CallInfo) -> flight.ClientMiddleware | None:
        cluster = self._cluster()
        return _Sending(cluster) if cluster else None


class _Sending(flight.ClientMiddleware):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, cluster: str) -> None:
        super().__init__()
        self._cluster = cluster

    def sending_headers(self) -> dict[str, str]:
        return {HEADER: self._cluster}
