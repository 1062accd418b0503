"""Tests that start processes take turns in one of the workers of `make test`; the others run beside them."""

from __future__ import annotations

import hypothesis
import pytest

# How long an example takes is the machine's business, which other tests share.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("live") is not None or item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.xdist_group("processes"))
