"""What observers of a cluster ask its processes: metrics, settings, tokens, and the address of the page."""

from __future__ import annotations

from typing import Annotated

import msgspec

from spark_replication.messages.envelope import Message, Part
from spark_replication.messages.introducing import PrincipalName
from spark_replication.model import Scalar

ADDRESS_CHARACTERS_MAX = 1_000


class GetMetrics(Message, frozen=True, kw_only=True):
    """Read the metrics of a process."""

    #: Whether to add series for each partition, which may be thousands.
    per_partition: bool = False


class MetricsText(Message, frozen=True, kw_only=True):
    """The answer to GetMetrics."""

    #: In the exposition format of Prometheus, version 0.0.4.
    text: str


class DescribeSettings(Message, frozen=True, kw_only=True):
    """Tell which settings a process has in force, and where each value comes from."""

    #: Those that hold there for this topic. None: those of the process.
    topic: str | None = None


class SettingInForce(Part, frozen=True, kw_only=True):
    name: str
    #: Of a setting that names a file, only whether there is one.
    value: Scalar
    #: As core.settings_in_force has them.
    origin: str


class ToldSettings(Message, frozen=True, kw_only=True):
    """The answer to DescribeSettings."""

    settings: tuple[SettingInForce, ...]
    #: The cluster's own settings as this process has heard of them, whether it takes them or not. None: of none yet.
    of_cluster: dict[str, Scalar] | None
    #: Where it keeps what it writes about itself, its log above all.
    directory: str
    #: The boot of the host that this path is of.
    boot_id: str


MARKS_MAX = 10_000
MARK_CHARACTERS_MAX = 100

TokenMark = Annotated[str, msgspec.Meta(max_length=MARK_CHARACTERS_MAX)]


class DescribeTokens(Message, frozen=True, kw_only=True):
    """Tell which of these tokens let somebody in at this process, by their marks, which show nothing of them."""

    marks: Annotated[tuple[TokenMark, ...], msgspec.Meta(max_length=MARKS_MAX)]
    #: Tell how many each of these has there, too: the same token has another mark under another salt.
    principals: Annotated[tuple[PrincipalName, ...], msgspec.Meta(max_length=MARKS_MAX)] = ()


class KnownTokens(Message, frozen=True, kw_only=True):
    """The answer to DescribeTokens."""

    #: Of those that were asked about.
    marks: tuple[str, ...]
    #: How many tokens each principal has that was asked about, and has any.
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    #: Why this process cannot use its files as they are. Empty if it can.
    trouble: str


class DescribePage(Message, frozen=True, kw_only=True):
    """Tell where the controller serves the page."""


class PageDescription(Message, frozen=True, kw_only=True):
    """The answer to DescribePage."""

    #: None if no page is served.
    url: Annotated[str, msgspec.Meta(max_length=ADDRESS_CHARACTERS_MAX)] | None
