# %% [markdown]
# # A tour of a cluster
#
# Each cell of this notebook shows one thing that `sr.connect` offers. It needs a cluster of at least three brokers, and
# its address in `$SPARK_REPLICATION_BOOTSTRAP`. `make run` starts such a cluster, and prints the address. No Spark is
# needed, and no network: charts bring along what draws them.
#
# Jupyter (with jupytext), VS Code and PyCharm open this file as a notebook.

# %%
from datetime import UTC, datetime

import pyarrow as pa

import spark_replication as sr

cluster = sr.connect()
cluster

# %% [markdown]
# The verdict comes first. `healthy` means that every partition has a leader, and that every replica is in sync.
# Otherwise a table below it names the reasons, what caused them, and what mends them.
#
# ## Tables
#
# `brokers`, `topics`, `partitions`, `events` and `lag` return pandas' DataFrames. `sr.connect(spark=spark)` returns
# Spark's instead.

# %%
cluster.brokers()

# %% [markdown]
# The tour has a topic of its own, so that it changes nothing of yours. Each partition has two replicas, which leaves a
# third broker to move one to.

# %%
TOPIC = "tour"
PARTITIONS = 6
ROWS = 10_000

began = datetime.now(UTC)
schema = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
if TOPIC in set(cluster.topics()["topic"]):
    cluster.admin.delete_topic(TOPIC)  # an earlier tour was not finished
cluster.admin.create_topic(
    TOPIC, schema, partitions=PARTITIONS, replication_factor=2, config={"min.insync.replicas": 1}
)

# %%
with sr.Producer(cluster.bootstrap) as producer:
    ids = pa.array(range(ROWS))
    batch = pa.record_batch([ids, ids.cast(pa.float64())], schema=schema)
    sent = [producer.send(TOPIC, batch, partition=partition) for partition in range(PARTITIONS)]
    acknowledged = [each.result() for each in sent]
acknowledged[0]

# %% [markdown]
# Each partition says who leads it, which replicas are in sync (`isr`), and its `condition`: `in sync`,
# `under replicated`, `under min ISR` or `leaderless`.

# %%
partitions = cluster.partitions([TOPIC])
partitions[["topic", "partition", "condition", "leader", "leader_epoch", "isr", "replicas"]]

# %%
partitions.groupby("leader").size()

# %% [markdown]
# Lag is how far a follower is behind its leader, as the leader tells it: in records, and in milliseconds.

# %%
cluster.lag([TOPIC])

# %% [markdown]
# ## All partitions at once
#
# Every partition is a cell. Its colour is its condition. Move the mouse over a cell to see its leader and its replicas.

# %%
cluster.grid()

# %% [markdown]
# ## Plan, look, apply
#
# A plan says what would move from where to where, how many bytes that copies, and about how long it takes. Nothing
# moves before `apply`. This plan takes the topic's replicas away from one of the brokers.

# %%
leaving = int(cluster.brokers()["broker"].max())
plan = cluster.plan(without=[leaving], topics=[TOPIC])
plan

# %%
refused = plan.apply(wait_s=120)
refused

# %% [markdown]
# Moves that were refused would be named above, with the reason. The broker has no replica of the topic any more:

# %%
moved = cluster.partitions([TOPIC])
moved[["partition", "leader", "replicas"]]

# %% [markdown]
# ## What happened
#
# A row is a partition, a bar is the time for which a broker led it. Marks below the bars are changes of a leader or of
# the replicas, and tell what set them off. Zoom with the mouse wheel, and drag.

# %%
cluster.timeline(TOPIC, since=began)

# %% [markdown]
# The same events as a table. All that one thing set off has the same `cause`.

# %%
events = cluster.events(topics=[TOPIC], last=50)
events[["at", "kind", "partition", "leader", "leader_epoch", "why", "because", "cause"]].tail(10)

# %% [markdown]
# ## A drill
#
# A drill kills the broker that leads a partition, with `kill -9` and under load. It measures how long producers waited,
# and counts whether every acknowledged row is read once. It only kills a broker of a cluster that this very process has
# started: here a small one, which ends with the cell.

# %%
with sr.LocalCluster.start(brokers=3) as small, sr.connect(small.zookeeper) as connected:
    drill = connected.drill(small)
drill

# %% [markdown]
# ## The end
#
# The tour's topic goes, with all its records.

# %%
cluster.admin.delete_topic(TOPIC)
health = cluster.health()
cluster.close()
health
