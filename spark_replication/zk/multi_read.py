"""Many reads in one request (ZooKeeper 3.6 and later), which kazoo 2.11 does not know.

A new controller reads every partition before its first election. One by one each read would take 0.3 ms of kazoo's CPU.
This is the only module that reaches into kazoo's inside: kazoo's version is pinned, and `tests/live/zk/test_session.py`
compares both ways of reading.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, NoAuthError, NoNodeError
from kazoo.protocol.serialization import (
    GetData,
    MultiHeader,
    int_struct,
    multiheader_struct,
    read_buffer,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat

MULTI_READ = 22  # ZooDefs.OpCode.multiRead
ERROR = -1  # the type of an operation's answer when it failed
NO_WATCH = None


class _Paths(NamedTuple):
    paths: tuple[str, ...]


class MultiRead(_Paths):
    """Has the shape of kazoo's own requests."""

    type: ClassVar[int] = MULTI_READ

    def serialize(self) -> bytes:
        packed = bytearray()
        for path in self.paths:
            packed += MultiHeader(GetData.type, False, ERROR).serialize()
            packed += GetData(path, NO_WATCH).serialize()
        return bytes(packed + multiheader_struct.pack(ERROR, True, ERROR))

    @classmethod
    def deserialize(cls, answer: bytes, offset: int) -> list[tuple[bytes, Any] | NoAuthError | None]:
        """For each path its data and stat; None if there is no such node; NoAuthError if that one may not be read."""
        found: list[tuple[bytes, Any] | NoAuthError | None] = []
        header, offset = MultiHeader.deserialize(answer, offset)
        while not header.done:
            if header.type == ERROR:
                (code,) = int_struct.unpack_from(answer, offset)
                offset += int_struct.size
                if code not in (NoNodeError.code, NoAuthError.code):
                    raise EXCEPTIONS[code]()
                found.append(None if code == NoNodeError.code else NoAuthError())
            else:
                data, offset = read_buffer(answer, offset)
                found.append((data or b"", ZnodeStat._make(stat_struct.unpack_from(answer, offset))))
                offset += stat_struct.size
            header, offset = MultiHeader.deserialize(answer, offset)
        return found


def multi_read_async(client: KazooClient, paths: tuple[str, ...]) -> Any:
    """kazoo's async result: a list with one entry for each path. The paths are whole: client.chroot is not added."""
    result = client.handler.async_result()
    client._call(MultiRead(paths), result)
    return result
