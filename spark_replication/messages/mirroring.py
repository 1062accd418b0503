"""What administrators ask of the controller's mirror."""

from __future__ import annotations

from spark_replication.messages.envelope import Message


class RebuildMirror(Message, frozen=True, kw_only=True):
    """Compare the tables with everything that is known, and write what they lack. Done: they have it."""
