"""What whoever watches a cluster asks of its processes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from spark_replication.messages.envelope import Message

ADDRESS_CHARACTERS_MAX = 1_000


class GetMetrics(Message, frozen=True, kw_only=True):
    """How are you, in numbers? per_partition: and each of your partitions, which may be thousands of series."""

    per_partition: bool = False


class MetricsText(Message, frozen=True, kw_only=True):
    """text: in the exposition format of Prometheus, version 0.0.4."""

    text: str


class DescribePage(Message, frozen=True, kw_only=True):
    """Where do you serve the page?"""


class PageDescription(Message, frozen=True, kw_only=True):
    """url: None = nowhere."""

    url: Annotated[str, msgspec.Meta(max_length=ADDRESS_CHARACTERS_MAX)] | None
