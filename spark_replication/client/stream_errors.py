"""Why a Flight stream ended."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import flight

from spark_replication.errors import BrokerNotAvailable, ReplicationError
from spark_replication.transport.actions import error_of_flight

FLIGHT_ERRORS = (flight.FlightError, pa.ArrowException, OSError)


def error_of_stream(error: Exception) -> ReplicationError:
    """The broker's own error. An error without a code says only that the broker has failed: another broker may work."""
    named = error_of_flight(error)
    if named.code != ReplicationError.code:
        return named
    return BrokerNotAvailable(f"the stream broke: {named.message}", maybe_written=True)
