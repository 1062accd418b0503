"""What a process says of itself, as Linux tells it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from spark_replication.admin.bench.probes import received_bytes


def test_what_came_over_each_connection_is_counted_and_nothing_is_left_open() -> None:
    ours, theirs = socket.socketpair()  # which is no connection by TCP
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        before = received_bytes()
        with socket.create_connection(listener.getsockname()) as sender, listener.accept()[0] as receiver:
            open_files = len(list(Path("/proc/self/fd").iterdir()))
            sender.sendall(bytes(5_000))
            left = 5_000
            while left:
                left -= len(receiver.recv(left))
            found = received_bytes()
            inodes = [os.fstat(each.fileno()).st_ino for each in (receiver, sender)]
            assert [found[inode] for inode in inodes] == [5_000, 0]
            assert os.fstat(ours.fileno()).st_ino not in found
            assert len(list(Path("/proc/self/fd").iterdir())) == open_files
        assert not before.keys() & set(inodes)
