"""Runs blocks of Python that README and the guide print, in whatever environment runs this: what they name is there."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pyarrow as pa

import spark_replication as sr

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
BATCH = pa.record_batch([pa.array([1, 2]), pa.array([9.5, 3.0])], schema=SCHEMA)


def placed(text: str, cluster: sr.LocalCluster) -> str:
    """With the cluster's addresses in place of those of the page."""
    leader = cluster.admin.describe_topics(["orders"])[0].partitions[0].leader
    assert leader is not None
    flight = cluster.brokers[leader]
    text = text.replace("zk://127.0.0.1:PORT/spark_replication", cluster.zookeeper)
    return text.replace("grpc://127.0.0.1:PORT", f"grpc://{flight.host}:{flight.port}")


def main() -> None:
    """By standard input: the blocks."""
    assert "PYTHONPATH" not in os.environ
    with sr.LocalCluster.start(brokers=4, directory=".data") as cluster, sr.Producer(cluster.bootstrap) as producer:
        cluster.admin.create_topic("orders", SCHEMA, partitions=6)
        given = {"pa": pa, "sr": sr, "cluster": cluster, "producer": producer, "batch": BATCH}
        given |= {"frame": pa.table(BATCH)}  # whatever Arrow can read
        scope: dict[str, Any] = {}
        for block in json.load(sys.stdin):
            scope |= given  # one that closes its own has ended these names
            exec(compile(placed(block, cluster), f"<{block.splitlines()[0]}>", "exec"), scope)
    sys.stdout.write(f"done, by {sr.__file__}\n")


if __name__ == "__main__":
    main()
