"""What Kafka's tools tell of topics and of the metadata log, as it came from version 4.3.1."""

from __future__ import annotations

import pytest

from spark_replication.admin.bench.kafka.told import Described, described, elections_s, leader_of_quorum
from spark_replication.errors import StartFailed

DESCRIBED = """\
Topic: t\tTopicId: 0xfwInPkQpyqAaAlth-REQ\tPartitionCount: 3\tReplicationFactor: 3\tConfigs: min.insync.replicas=2
\tTopic: t\tPartition: 0\tLeader: 1\tReplicas: 3,1,2\tIsr: 2,1\tElr: \tLastKnownElr: \n\
\tTopic: t\tPartition: 1\tLeader: none\tReplicas: 1,2,3\tIsr: \tElr: 1\tLastKnownElr: \n"""

QUORUM = """\
ClusterId:              Xj2qDqrwTbGN5k0jo0cSCA
LeaderId:               2
LeaderEpoch:            1
CurrentVoters:          [{"id": 1, "endpoints": ["CONTROLLER://127.0.0.1:53401"]}]
"""

_RECORD = "| offset: {} CreateTime: {} keySize: -1 valueSize: 41 sequence: -1 headerKeys: [] payload: {}\n"


def _dumped(*records: tuple[int, str]) -> str:
    text = "Dumping /data/__cluster_metadata-0/00000000000000000000.log\nLog starting offset: 0\n"
    for offset, (at_ms, payload) in enumerate(records):
        text += f"baseOffset: {offset} lastOffset: {offset} count: 1 CreateTime: {at_ms} size: 72 magic: 2\n"
        text += _RECORD.format(offset, at_ms, payload)
    return text


def _topic(topic_id: str) -> str:
    return f'{{"type":"TOPIC_RECORD","version":0,"data":{{"name":"t","topicId":"{topic_id}"}}}}'


def _partition(topic_id: str) -> str:
    return (
        '{"type":"PARTITION_RECORD","version":2,"data":{"partitionId":0,'
        f'"topicId":"{topic_id}","replicas":[3,1,2],"isr":[3,1,2],"leader":3,"leaderEpoch":0}}}}'
    )


def _changed(topic_id: str, partition: int, leader: str = "") -> str:
    return (
        f'{{"type":"PARTITION_CHANGE_RECORD","version":2,"data":{{"partitionId":{partition},'
        f'"topicId":"{topic_id}","isr":[1,2]{leader}}}}}'
    )


def test_a_topic_is_described() -> None:
    assert described(DESCRIBED) == [
        Described(partition=0, leader=1, replicas=[3, 1, 2], isr=[1, 2]),
        Described(partition=1, leader=None, replicas=[1, 2, 3], isr=[]),
    ]
    with pytest.raises(StartFailed, match="Topic t not present"):
        described("Topic t not present")


def test_who_leads_the_quorum() -> None:
    assert leader_of_quorum(QUORUM) == 2
    with pytest.raises(StartFailed, match="no leader"):
        leader_of_quorum("TimeoutException")


def test_an_election_is_a_change_of_the_leader_since_then() -> None:
    dumped = _dumped(
        (1_000, _topic("a")),
        (1_000, _partition("a")),
        (2_000, _changed("a", 0, ',"leader":1')),  # before the kill
        (5_000, _changed("a", 0, ',"leader":2')),
        (5_100, _changed("a", 1)),  # its ISR alone has shrunk
        (5_200, _changed("a", 2, ',"leader":-1')),  # nobody leads
        (5_300, _changed("b", 3, ',"leader":1')),  # of another topic
        (5_400, '{"type":"NO_OP_RECORD","version":0,"data":{}}'),
    )
    assert elections_s(dumped, "t", 4.0) == {0: 5.0}


def test_a_topic_that_was_made_again_is_another() -> None:
    dumped = _dumped(
        (1_000, _topic("a")),
        (2_000, _changed("a", 0, ',"leader":1')),
        (3_000, _topic("b")),
        (4_000, _changed("b", 1, ',"leader":2')),
    )
    assert elections_s(dumped, "t", 0.0) == {1: 4.0}
