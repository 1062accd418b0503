"""Opens a client's connection to a broker's port for frames: connects, and shakes hands."""

from __future__ import annotations

import socket
from typing import NamedTuple

from spark_replication.errors import BrokerNotAvailable, InvalidRequest, ReplicationError
from spark_replication.messages.lane import ClientFrame, WelcomeFrame
from spark_replication.transport.proofs.handshake import introduce_client
from spark_replication.transport.security.security import Security
from spark_replication.transport.sockets.frames import Channel, FrameReceiver, tune

CONNECT_TIMEOUT_S = 2.0
HELLO_TIMEOUT_S = 5.0


class Opened(NamedTuple):
    """It waits, without a timeout."""

    channel: Channel
    receiver: FrameReceiver
    welcome: WelcomeFrame


def opened(
    host: str, port: int, security: Security, *, reads: bool = False, joins: bool = False, frame_bytes_max: int
) -> Opened:
    """Raises OSError or a ReplicationError. See ClientFrame for `reads` and `joins`, and FrameReceiver for
    frame_bytes_max."""
    connection = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
    try:
        tune(connection)
        channel = security.connected(connection, host, HELLO_TIMEOUT_S)
        receiver = FrameReceiver(channel, frame_bytes_max)
        hello = ClientFrame(cluster_id=security.cluster(), reads=reads, joins=joins, port=port)
        welcome = introduce_client(channel, receiver, hello, security.client_tokens, HELLO_TIMEOUT_S)
    except InvalidRequest as error:  # another program may have the port of a broker that has ended
        connection.close()
        raise BrokerNotAvailable(f"what answers at {host}:{port} is no broker: {error.message}") from error
    except (OSError, ReplicationError):
        connection.close()
        raise
    return Opened(channel, receiver, welcome)
