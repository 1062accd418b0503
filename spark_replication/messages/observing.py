"""What whoever watches a cluster asks of its processes."""

from __future__ import annotations

from spark_replication.messages.envelope import Message


class GetMetrics(Message, frozen=True, kw_only=True):
    """How are you, in numbers? per_partition: and each of your partitions, which may be thousands of series."""

    per_partition: bool = False


class MetricsText(Message, frozen=True, kw_only=True):
    """text: in the exposition format of Prometheus, version 0.0.4."""

    text: str
