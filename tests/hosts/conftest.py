"""Every test here is marked `hosts`, and left out, with what is missing, where no hosts can be made."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.hosts.bed import Bed, lacking

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    missing = lacking() if ours else ""
    for item in ours:
        item.add_marker(pytest.mark.hosts)
        item.add_marker(pytest.mark.trust)
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a failure goes what each process said last: its files go with the bed."""
    report = yield
    if report.failed and HERE in item.path.parents:
        report.sections += [section for bed in Bed.made for section in bed.last_words()]
    return report
