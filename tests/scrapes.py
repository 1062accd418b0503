"""Scrapes, read as Prometheus reads them."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from spark_replication.live.exposition import PREFIX


class Sample(msgspec.Struct, frozen=True):
    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Scrape(msgspec.Struct, frozen=True):
    """Of one moment; the labels of each sample have its `instance`."""

    at_s: float
    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, texts: dict[str, str]) -> Scrape:
        """texts: by instance."""
        found: list[Sample] = []
        for instance, text in texts.items():
            found += read(text, instance)
        return cls(time.monotonic(), tuple(found))

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    def named(self, name: str) -> list[Sample]:
        return [sample for sample in self.samples if sample.name == name]

    def value(self, name: str, **labels: str) -> float:
        """Of the only sample of ours with that name, and these labels among others."""
        wanted = labels.items()
        (found,) = [sample for sample in self.named(PREFIX + name) if wanted <= dict(sample.labels).items()]
        return found.value


def read(text: str, instance: str) -> Iterable[Sample]:
    """A name that comes twice with the same labels would be refused by Prometheus."""
    found = [
        Sample(sample.name, tuple(sorted({**sample.labels, "instance": instance}.items())), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len({(sample.name, sample.labels) for sample in found}) == len(found)
    return found
