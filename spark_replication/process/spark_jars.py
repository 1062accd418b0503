"""Jars that Spark ships and that serve more than Spark: ZooKeeper's server, Ivy, a compiler."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from spark_replication.errors import StartFailed


def spark_jar(name: str, *, otherwise: str = "") -> Path:
    """The jar of this name: beside pyspark, or in SPARK_HOME, since under spark-submit pyspark is a zip file. Raises
    StartFailed; `otherwise` says what else its caller could use."""
    found = find_spec("pyspark")
    homes = [Path(found.origin).parent] if found is not None and found.origin is not None else []
    if "SPARK_HOME" in os.environ:
        homes.append(Path(os.environ["SPARK_HOME"]))
    for home in homes:
        jars = sorted((home / "jars").glob(f"{name}-[0-9]*.jar"))
        if jars:
            return jars[-1]
    searched = ", ".join(map(str, homes)) or "any pyspark"
    raise StartFailed(f"no jar of {name} in {searched}: install pyspark, or set SPARK_HOME{otherwise}")
