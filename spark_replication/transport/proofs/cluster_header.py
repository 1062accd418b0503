"""A header that says which cluster a Flight call is for. A server of another cluster refuses the call.

Addresses outlive brokers. Where a broker has died, a broker of another cluster may listen, with a topic of the same
name. A client that does not know this yet would read the other topic, and be told that its records are stored.

A call without the header is served: a client that begins knows no cluster yet, and other programs need not send it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyarrow import flight

from spark_replication.errors import MisroutedCall, ReplicationError

HEADER = "spark-replication-cluster"

Cluster = Callable[[], str]  # the id of the cluster; empty while it is not known
Refused = Callable[[ReplicationError, flight.CallInfo], None]


class ClusterCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """An error that is raised here refuses the call, of whatever kind, before its handler runs."""

    def __init__(self, cluster: Cluster, refused: Refused) -> None:
        """refused: counts refused calls, and tells of them."""
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
            self._refused(error, info)
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
