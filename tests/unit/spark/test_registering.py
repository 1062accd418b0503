"""Whether the Python that Spark starts has this package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_replication.errors import InvalidRequest
from spark_replication.spark.registering import require_our_python


def test_this_python_has_it() -> None:
    require_our_python(sys.executable)
    require_our_python("no-such-python")  # Spark says so itself


@pytest.mark.parametrize("has_it", [False, True])
def test_another_python_that_does_not_have_it_is_named_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_it: bool
) -> None:
    another = tmp_path / "python3"
    another.write_text(f"#!/bin/sh\nexit {0 if has_it else 1}\n")
    another.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if has_it:
        require_our_python("python3")
        return
    with pytest.raises(InvalidRequest, match=f"Spark starts {another}, .* PYSPARK_PYTHON={sys.executable}"):
        require_our_python("python3")
