"""The short form of `python -m tests.hosts.history`: another seed each time, which a failure prints."""

from __future__ import annotations

import secrets

import pytest

from tests.hosts.history import run
from tests.hosts.program import say

SECONDS = 20.0  # until the last fault begins


@pytest.mark.timeout(300)
def test_random_faults_cost_nothing_that_was_acknowledged() -> None:
    seed = secrets.randbelow(1 << 32)

    say(f"replay: python -m tests.hosts.history --minutes {SECONDS / 60} --seed {seed}")
    run(seed, SECONDS)
