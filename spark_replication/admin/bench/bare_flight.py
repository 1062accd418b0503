"""Flight alone: a process that serves one batch from its memory, as often as its client's ticket says.

The time that a read takes beyond this is the broker's. `python -m spark_replication.admin.bench.bare_flight` is that
process. It reads the batch from its standard input, and ends with that.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from itertools import repeat

import pyarrow as pa
from pyarrow import flight

from spark_replication.admin.bench.bare import END_TIMEOUT_S, HOST
from spark_replication.process.memory import keep_freed_memory
from spark_replication.transport.security.security import NO_SECURITY


class BareFlight:
    """A context manager, with which its process ends."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        command = [sys.executable, "-m", "spark_replication.admin.bench.bare_flight"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with pa.ipc.new_stream(self.process.stdin, batch.schema) as writer:
            writer.write_batch(batch)
        self.process.stdin.flush()
        with self.process.stdout as told:
            self.client = NO_SECURITY.client(f"{HOST}:{int(told.readline())}")

    def batches(self, count: int) -> flight.FlightStreamReader:
        return self.client.do_get(flight.Ticket(str(count).encode()))

    def __enter__(self) -> BareFlight:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(END_TIMEOUT_S)


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, batch: pa.RecordBatch) -> None:
        keep_freed_memory()
        super().__init__(NO_SECURITY.location(f"{HOST}:0"))
        self._batch = batch

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        return flight.GeneratorStream(self._batch.schema, repeat(self._batch, int(ticket.ticket)))


def main() -> None:
    with pa.ipc.open_stream(sys.stdin.buffer) as stream:
        server = _Server(stream.read_next_batch())
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    threading.Thread(target=server.serve, name="serve", daemon=True).start()
    sys.stdin.buffer.read()
    server.shutdown()


if __name__ == "__main__":
    main()
