"""What observers of a cluster ask its processes: metrics, and the address of the page."""

from __future__ import annotations

from typing import Annotated

import msgspec

from spark_replication.messages.envelope import Message

ADDRESS_CHARACTERS_MAX = 1_000


class GetMetrics(Message, frozen=True, kw_only=True):
    """Read the metrics of a process."""

    #: Whether to add series for each partition, which may be thousands.
    per_partition: bool = False


class MetricsText(Message, frozen=True, kw_only=True):
    """The answer to GetMetrics."""

    #: In the exposition format of Prometheus, version 0.0.4.
    text: str


class DescribePage(Message, frozen=True, kw_only=True):
    """Tell where the controller serves the page."""


class PageDescription(Message, frozen=True, kw_only=True):
    """The answer to DescribePage."""

    #: None if no page is served.
    url: Annotated[str, msgspec.Meta(max_length=ADDRESS_CHARACTERS_MAX)] | None
