"""Which member of a group is to own which partitions (G4).

Rules:
- Each partition of a topic that some member reads has one owner, who reads that topic.
- Members that read the same topics own as many, or one more.
- What a member owns it keeps, unless others would have too few: one member's coming moves partitions to that member
  alone, and its going moves its own alone.
- Among shares that are as even, a partition goes to a member on a host that has a replica in sync.
- The outcome is a fixed point: while members release and are granted what it says, it stays what it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from spark_replication.model import TopicPartition

#: The hosts on which a partition has replicas in sync.
Hosts = Mapping[TopicPartition, Collection[str]]


class Wish(NamedTuple):
    topics: Collection[str]
    host: str
    #: What the member owns at present.
    owned: Collection[TopicPartition]


def shares(wishes: Mapping[str, Wish], partitions: Hosts) -> dict[str, frozenset[TopicPartition]]:
    """partitions: all that exist of the topics that anybody wishes for."""
    shared: dict[str, set[TopicPartition]] = {name: set() for name in wishes}
    for readers, alike in _classes(wishes, partitions):
        _share(readers, alike, wishes, partitions, shared)
    return {name: frozenset(found) for name, found in shared.items()}


def _classes(wishes: Mapping[str, Wish], partitions: Hosts) -> list[tuple[tuple[str, ...], list[TopicPartition]]]:
    """The partitions, apart by who reads their topics. Those that few read come first, since these have no choice."""
    readers: dict[str, list[str]] = defaultdict(list)
    for name in sorted(wishes):
        for topic in wishes[name].topics:
            readers[topic].append(name)
    alike: dict[tuple[str, ...], list[TopicPartition]] = defaultdict(list)
    for partition in sorted(partitions):
        if partition.topic in readers:
            alike[tuple(readers[partition.topic])].append(partition)
    return sorted(alike.items(), key=lambda each: (len(each[0]), each[0]))


def _share(
    readers: Sequence[str],
    alike: Sequence[TopicPartition],
    wishes: Mapping[str, Wish],
    partitions: Hosts,
    shared: dict[str, set[TopicPartition]],
) -> None:
    owned = {name: sorted(set(wishes[name].owned).intersection(alike)) for name in readers}
    quotas = _quotas({name: (len(shared[name]), len(owned[name])) for name in readers}, len(alike))
    free = set(alike)
    for name, kept in owned.items():
        kept.sort(key=lambda each: wishes[name].host not in partitions[each])  # what is near is kept rather
        shared[name].update(kept[: quotas[name]])
        free.difference_update(kept[: quotas[name]])
    lacks = {name: quotas[name] - min(quotas[name], len(owned[name])) for name in readers}
    lacks = {name: count for name, count in lacks.items() if count}
    left: list[TopicPartition] = []
    for each in sorted(free):
        near = [name for name in lacks if wishes[name].host in partitions[each]]
        if near:
            _give(each, max(near, key=lambda name: lacks[name]), lacks, shared)
        else:
            left.append(each)
    for each in left:
        _give(each, max(lacks, key=lambda name: lacks[name]), lacks, shared)


def _give(partition: TopicPartition, name: str, lacks: dict[str, int], shared: dict[str, set[TopicPartition]]) -> None:
    shared[name].add(partition)
    lacks[name] -= 1
    if not lacks[name]:
        del lacks[name]


def _quotas(has: Mapping[str, tuple[int, int]], count: int) -> dict[str, int]:
    """How many of so many partitions each is to own. has: how many others each owns, and how many of these. Who has
    fewer others gets more of these, up to the same level; what does not come out even goes to who owns more of them."""
    level, room = 0, 0
    names = sorted(has, key=lambda name: has[name][0])
    for place, name in enumerate(names):
        level = has[name][0]
        room = sum(level - has[other][0] for other in names[:place])
        if room >= count:
            break
    lowest = [name for name in names if has[name][0] < level] if room >= count else names
    total = count + sum(has[name][0] for name in lowest)
    each, over = divmod(total, len(lowest))
    quotas = dict.fromkeys(has, 0)
    preferred = sorted(lowest, key=lambda name: (-has[name][1] - has[name][0], name))
    for place, name in enumerate(preferred):
        quotas[name] = each - has[name][0] + (place < over)
    return quotas
