"""Frames between brokers, over real sockets."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.errors import BrokerNotAvailable, InvalidRequest
from spark_replication.messages.replication import ErrorFrame, HelloFrame
from spark_replication.storage.disk.files import LocalFiles
from spark_replication.transport.sockets.frames import (
    BUFFERS_PER_CALL_MAX,
    RECEIVE_BYTES,
    Buffer,
    FrameReceiver,
    ReceivedFrame,
    encoded,
    hang_up,
    send,
)

HELLO = HelloFrame(cluster_id="c", broker_id=1, broker_epoch=2)
FRAME_BYTES_MAX = 8 << 20


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def received(receiver: FrameReceiver, count: int) -> list[tuple[object, bytes]]:
    found: list[tuple[object, bytes]] = []
    while len(found) < count:
        found += [(frame, bytes(payload)) for frame, payload in receiver.receive()]
    return found


def test_frames_of_any_size_arrive_whole_and_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    sizes = [0, 1, 100, RECEIVE_BYTES - 1, RECEIVE_BYTES, 5 * RECEIVE_BYTES, 3, 0, RECEIVE_BYTES // 2] * 3
    sent = [(ErrorFrame(error="E", message=str(place)), bytes([place]) * size) for place, size in enumerate(sizes)]

    def write() -> None:
        for frame, payload in sent:
            half = len(payload) // 2
            send(pair[0], encoded(frame, payload[:half], memoryview(payload)[half:]))

    writer = threading.Thread(target=write)
    writer.start()
    assert received(FrameReceiver(pair[1], FRAME_BYTES_MAX), len(sent)) == sent
    writer.join()


def test_a_frame_takes_memory_as_it_comes(pair: tuple[socket.socket, socket.socket]) -> None:
    """Its length is eight bytes, which anybody may send who is let in."""
    header, payload = encoded(ErrorFrame(error="E", message=""), b"x" * (FRAME_BYTES_MAX - 1_000))
    receiver = FrameReceiver(pair[1], FRAME_BYTES_MAX)
    come, frames = 0, list[ReceivedFrame]()
    for part in (bytes(header), *(payload[at : at + (100 << 10)] for at in range(0, len(payload), 100 << 10))):
        assert receiver.whole() == []
        send(pair[0], [part])
        come += len(part)
        while receiver._filled < come:
            frames = receiver.receive()
        assert len(receiver._view) <= 2 * come + 2 * RECEIVE_BYTES
    ((frame, found),) = frames
    assert (frame, bytes(found)) == (ErrorFrame(error="E", message=""), bytes(payload))


def test_a_frame_that_comes_byte_by_byte_is_one_frame(pair: tuple[socket.socket, socket.socket]) -> None:
    receiver = FrameReceiver(pair[1], FRAME_BYTES_MAX)
    data = b"".join(map(bytes, encoded(HELLO, b"payload")))
    found = []
    for place in range(len(data)):
        pair[0].sendall(data[place : place + 1])
        found += receiver.receive()
    assert [(frame, bytes(payload)) for frame, payload in found] == [(HELLO, b"payload")]


def test_more_buffers_than_one_call_takes_are_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    buffers: list[Buffer] = []
    for _ in range(BUFFERS_PER_CALL_MAX * 3):
        buffers += encoded(HELLO, b"x" * 700)
    writer = threading.Thread(target=send, args=(pair[0], buffers))
    writer.start()
    assert received(FrameReceiver(pair[1], FRAME_BYTES_MAX), BUFFERS_PER_CALL_MAX * 3) == [(HELLO, b"x" * 700)] * (
        BUFFERS_PER_CALL_MAX * 3
    )
    writer.join()


@pytest.mark.parametrize("missing", [0, 1, 4_000])
def test_stored_bytes_go_with_the_frame_that_promises_them(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: int
) -> None:
    """What their file has no longer comes as zeros: the frames behind them are read."""
    files = LocalFiles(open_files_max=1)
    files.create(tmp_path / "data", bytes(range(250)) * 16)
    parts = [*encoded(HELLO, b"entries", files.stored(tmp_path / "data", 4_000, 0), b"more"), *encoded(HELLO, b"next")]
    files.truncate(tmp_path / "data", 4_000 - missing)
    writer = threading.Thread(target=send, args=(pair[0], parts))
    writer.start()
    data = (bytes(range(250)) * 16)[: 4_000 - missing] + bytes(missing)
    assert received(FrameReceiver(pair[1], FRAME_BYTES_MAX), 2) == [
        (HELLO, b"entries" + data + b"more"),
        (HELLO, b"next"),
    ]
    writer.join()
    assert (f"{missing} of 4000 stored bytes could not be read" in caplog.text) == bool(missing)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack("!II", 10, FRAME_BYTES_MAX), "replication.frame.bytes.max"),
        (b"GET / HTTP/1.1\r\n", "replication.frame.bytes.max"),
        (struct.pack("!II", 2, 0) + b"\xc1\xc1", "not a replication frame"),
        (struct.pack("!II", 0, 0), "not a replication frame"),
    ],
)
def test_what_is_no_frame_is_refused(pair: tuple[socket.socket, socket.socket], data: bytes, why: str) -> None:
    pair[0].sendall(data)
    with pytest.raises(InvalidRequest, match=why):
        FrameReceiver(pair[1], FRAME_BYTES_MAX).receive()


def test_a_peer_that_hangs_up_is_not_available(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(b"\0\0\0")
    hang_up(pair[0])
    receiver = FrameReceiver(pair[1], FRAME_BYTES_MAX)
    assert receiver.receive() == []
    with pytest.raises(BrokerNotAvailable):
        receiver.receive()
