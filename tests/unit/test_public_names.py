"""What people find under the package's name."""

from __future__ import annotations

import subprocess
import sys

import pytest

import spark_replication as sr

# What a producer's process is not to load.
HEAVY = ("pyspark", "pandas", "deltalake")


def test_each_public_name_is_shown_and_is_there() -> None:
    assert set(sr.__all__) <= set(dir(sr)), "help() and completion go by dir()"
    assert [name for name in sr.__all__ if getattr(sr, name) is None] == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Produces'"):
        _ = sr.Produces


def test_a_look_at_the_names_loads_nothing_heavy() -> None:
    program = (
        f"import sys, spark_replication as sr; dir(sr); sr.Producer; print([m for m in {HEAVY} if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
