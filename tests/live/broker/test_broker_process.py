"""Broker processes with a real ZooKeeper and real sockets: what clients, controllers and guardians see of them."""

from __future__ import annotations

import os
import socket
import struct

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from spark_replication.engine.guarding.guardian_life import TAKEN_OVER
from spark_replication.errors import ReplicationError
from spark_replication.live.guarding.broker_file import read_broker_file
from spark_replication.messages.actions import INIT_PRODUCER, RENEW_LEASE, SHUTDOWN
from spark_replication.messages.envelope import Done
from spark_replication.messages.frames import from_frame
from spark_replication.messages.guarding import LeaseAnswer, RenewLease, Shutdown
from spark_replication.messages.records import BatchMetadata, InitProducer
from spark_replication.messages.replication import ErrorFrame
from spark_replication.storage.directory.broker_directory import read_clean_shutdown
from spark_replication.transport.flight.actions import call, error_of_flight
from tests.live.broker.brokers import SCHEMA, TIMEOUT_S, Cluster, Put, read, rows
from tests.live.broker.conftest import StartCluster
from tests.live.cluster.faults import stopped
from tests.waiting import eventually

pytestmark = pytest.mark.live

BATCHES = 200
ROWS = 50


def produce(cluster: Cluster, leader: int, first: int, batches: int) -> None:
    """Pipelined: all are sent before the first answer is looked at."""
    put = Put(cluster.client(leader), "orders")
    for number in range(batches):
        put.send(rows(first + number * ROWS, ROWS))
    for number in range(batches):
        base = first + number * ROWS
        assert put.answer() == {"base_offset": base, "last_offset": base + ROWS - 1}
    put.close()


def is_written(cluster: Cluster, leader: int, first: int) -> bool:
    """One batch. Until the leader knows of enough members it refuses it, and writes nothing."""
    put = Put(cluster.client(leader), "orders")
    put.send(rows(first, ROWS))
    answer = put.answer()
    put.close()
    return answer == {"base_offset": first, "last_offset": first + ROWS - 1}


def same_on_all(cluster: Cluster, brokers: tuple[int, ...]) -> bool:
    first, *others = (cluster.data_files(broker, "orders") for broker in brokers)
    return bool(first) and all(other == first for other in others)


def test_what_is_acknowledged_lies_on_all_three_and_reads_back(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=3)
    cluster.create_topic("orders", (1, 2, 3), min_isr=3)
    produce(cluster, 1, 0, BATCHES)
    assert same_on_all(cluster, (1, 2, 3)), "an acks=all answer waits for every member of the ISR"

    found = read(cluster.client(1), topic="orders", **{"from": 25, "to": 120})
    assert [entry["base_offset"] for entry, _ in found] == [25, 50, 100], "trimmed at both ends"
    assert pa.Table.from_batches([batch for _, batch in found])["id"].to_pylist() == list(range(25, 120))
    assert {entry["high_watermark"] for entry, _ in found} == {BATCHES * ROWS}
    everything = read(cluster.client(1), topic="orders", columns=["name"])
    assert sum(batch.num_rows for _, batch in everything) == BATCHES * ROWS
    assert everything[0][1].schema.names == ["name"]


def test_a_killed_follower_leaves_the_isr_and_catches_up_after_its_restart(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=3, settings={"replica.lag.time.ms": 400})
    cluster.create_topic("orders", (1, 2, 3))
    produce(cluster, 1, 0, 20)
    cluster.kill(3)
    produce(cluster, 1, 20 * ROWS, 20)
    eventually(lambda: cluster.stored("orders").state.isr == {1, 2}, "broker 3 leaves the ISR")
    epoch = cluster.start(3).epoch
    eventually(lambda: cluster.stored("orders").state.isr == {1, 2, 3}, "broker 3 is in sync again")
    assert same_on_all(cluster, (1, 2, 3))
    read_epochs = cluster.store.read_brokers().broker_epochs[3]
    assert (read_epochs.epoch, read_epochs.clean_since) == (epoch, 0), "its page cache outlived it (I8)"


def test_a_killed_leader_leads_on_without_any_controller(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=3)
    cluster.create_topic("orders", (1, 2, 3), min_isr=3)
    produce(cluster, 1, 0, 20)
    cluster.kill(1)
    cluster.start(1)
    produce(cluster, 1, 20 * ROWS, 20)
    assert same_on_all(cluster, (1, 2, 3))


def test_another_leader_goes_on_where_the_first_was(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=3)
    cluster.create_topic("orders", (1, 2, 3), min_isr=3)
    produce(cluster, 1, 0, 20)
    open_put = Put(cluster.client(1), "orders")
    cluster.lead("orders", 2)
    open_put.send(rows(0, 1))
    answer = open_put.answer()
    assert (answer["error"], answer["retriable"], answer["maybe_written"]) == ("NOT_LEADER_OR_FOLLOWER", True, False)
    open_put.close()
    produce(cluster, 2, 20 * ROWS, 20)
    assert same_on_all(cluster, (1, 2, 3))
    epochs = {entry["leader_epoch"] for entry, _ in read(cluster.client(2), topic="orders")}
    assert epochs == {0, 1}


def test_a_reader_that_waits_gets_what_comes_and_ends_when_nothing_does(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=1)
    cluster.create_topic("orders", (1,), min_isr=1)
    ticket = flight.Ticket(b'{"topic":"orders","partition":0,"max_wait_ms":2000}')
    stream = cluster.client(1).do_get(ticket)
    produce(cluster, 1, 0, 1)
    assert stream.read_chunk().data.num_rows == ROWS
    produce(cluster, 1, ROWS, 1)
    assert stream.read_chunk().data.num_rows == ROWS
    with pytest.raises(StopIteration):
        stream.read_chunk()


def test_a_refused_batch_does_not_end_the_stream(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=1)
    cluster.create_topic("orders", (1,), min_isr=1)
    put = Put(cluster.client(1), "orders")
    expected = []
    for metadata, error in (
        (b"not json", "INVALID_REQUEST"),
        (b'{"akcs":1}', "INVALID_REQUEST"),
        (b'{"acks":7}', "INVALID_REQUEST"),
        (b'{"producer":5}', "INVALID_REQUEST"),
        (b'{"producer":5,"sequence":3}', "OUT_OF_ORDER_SEQUENCE_NUMBER"),
    ):
        put.send(rows(0, 1), metadata)
        expected.append(error)
    put.send(rows(0, 0))
    expected.append("INVALID_REQUEST")
    assert [put.answer()["error"] for _ in expected] == expected
    put.send(rows(0, 3), b'{"acks":1,"producer":5,"sequence":0}')
    put.send(rows(0, 3), b'{"acks":0,"producer":5,"sequence":0}')
    put.send(rows(3, 3))
    first = {"base_offset": 0, "last_offset": 2}
    assert [put.answer() for _ in range(3)] == [first, first, {"base_offset": 3, "last_offset": 5}]
    put.close()
    other = pa.schema([pa.field("id", pa.int32())])
    wrong = Put(cluster.client(1), "orders", other)
    wrong.send(pa.record_batch([pa.array([1], pa.int32())], schema=other))
    assert wrong.answer()["error"] == "SCHEMA_MISMATCH"
    wrong.close()


@pytest.mark.parametrize(
    ("ticket", "code"),
    [
        (b"not json", "INVALID_REQUEST"),
        (b'{"topic":"orders","partition":0,"form":3}', "INVALID_REQUEST"),
        (b'{"topic":"orders","partition":0,"columns":["nmae"]}', "INVALID_REQUEST"),
        (b'{"topic":"orders","partition":0,"from":9999}', "OFFSET_OUT_OF_RANGE"),
        (b'{"topic":"orders","partition":7}', "UNKNOWN_TOPIC_OR_PARTITION"),
        (b'{"topic":"odrers","partition":0}', "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_a_bad_ticket_gets_a_clear_error_and_a_good_one_works(bad: Cluster, ticket: bytes, code: str) -> None:
    client = bad.client(1)
    with pytest.raises(flight.FlightError) as caught:
        client.do_get(flight.Ticket(ticket)).read_all()
    assert str(caught.value).startswith(f"{code}: ")
    assert error_of_flight(caught.value).code == code
    assert read(client, topic="orders")[0][1].num_rows == ROWS


@pytest.fixture(scope="module")
def bad(zookeeper: object, tmp_path_factory: pytest.TempPathFactory) -> object:
    cluster = Cluster(zookeeper.address, "/bad", tmp_path_factory.mktemp("bad"), {})  # type: ignore[attr-defined]
    cluster.start(1)
    cluster.create_topic("orders", (1,), min_isr=1)
    produce(cluster, 1, 0, 1)
    yield cluster
    cluster.close()


def test_flight_info_names_the_leader_and_a_whole_ticket(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=2)
    cluster.create_topic("orders", (2, 1))
    produce(cluster, 2, 0, 3)
    client = cluster.client(1)
    info = client.get_flight_info(flight.FlightDescriptor.for_path("orders"))
    assert info.schema == SCHEMA
    (endpoint,) = info.endpoints
    assert endpoint.locations == [flight.Location(f"grpc://127.0.0.1:{cluster.file(2).port}")]
    ticket = {"topic": "orders", "partition": 0, "from": "earliest"}  # retention may have taken what lay at 0
    assert ticket.items() <= msgspec.json.decode(endpoint.ticket.ticket).items()
    assert flight.connect(endpoint.locations[0]).do_get(endpoint.ticket).read_all().num_rows == 3 * ROWS
    assert [found.descriptor.path for found in client.list_flights()] == [[b"orders"]]
    metadata = cluster.metadata(1)
    assert [topic.name for topic in metadata.topics] == ["orders"]
    assert set(metadata.brokers) == {1, 2}
    with pytest.raises(flight.FlightError, match=r"^UNKNOWN_TOPIC_OR_PARTITION"):
        client.get_flight_info(flight.FlightDescriptor.for_path("orders", "4"))


def test_a_broker_that_starts_tells_of_a_partition_that_is_assigned_and_not_made_yet(
    start_cluster: StartCluster,
) -> None:
    """No controller lives that could tell it."""
    cluster = start_cluster(brokers=1)
    cluster.create_topic("orders", (1,), min_isr=1, unmade=1)
    cluster.kill(1)
    cluster.start(1)
    (topic,) = cluster.metadata(1).topics
    assert (topic.numbers, topic.hidden) == ((0, 1), (1,))


def test_a_topic_whose_schema_is_none_is_left_out_of_the_list_and_the_others_are_in_it(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(brokers=1)
    cluster.create_topic("odd", (1,), schema=b"hello", min_isr=1)
    cluster.create_topic("orders", (1,), min_isr=1)
    client = cluster.client(1)
    assert [found.descriptor.path for found in client.list_flights()] == [[b"orders"]]
    with pytest.raises(flight.FlightError, match="holds no Arrow schema"):
        client.get_flight_info(flight.FlightDescriptor.for_path("odd"))


@pytest.mark.parametrize(
    ("garbage", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", "INVALID_REQUEST"),
        (struct.pack("!II", 4, 0) + b"\xc1\xc1\xc1\xc1", "INVALID_REQUEST"),
        (b"\0" * 64, "INVALID_REQUEST"),
    ],
)
def test_garbage_on_the_replication_port_ends_that_connection_only(bad: Cluster, garbage: bytes, code: str) -> None:
    with socket.create_connection(("127.0.0.1", bad.file(1).replication_port), timeout=TIMEOUT_S) as connection:
        connection.sendall(garbage)
        answer = b""
        while data := connection.recv(4096):
            answer += data
    header, payload = struct.unpack_from("!II", answer)
    frame = from_frame(answer[8 : 8 + header])
    assert isinstance(frame, ErrorFrame)
    assert (frame.error, payload) == (code, 0)
    assert read(bad.client(1), topic="orders")[0][1].num_rows == ROWS


def test_producer_ids_are_nobody_elses(start_cluster: StartCluster) -> None:
    """Random ones: they fit in a batch's metadata, and brokers need no memory of them."""
    cluster = start_cluster(brokers=2)
    ids = [call(cluster.client(broker), INIT_PRODUCER, InitProducer(), 10_000).producer for broker in (1, 2, 1, 2)]
    assert len(set(ids)) == 4
    assert all(BatchMetadata(producer=number, sequence=0).producer == number for number in ids)


def test_a_lease_that_nobody_renews_ends_the_process_cleanly(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=1, settings={"broker.lease.ms": 1_500})
    renew = RenewLease(controller_epoch=2, attempt=5, lease_ms=1_000)
    answer = call(cluster.client(1), RENEW_LEASE, renew, 10_000)
    process = cluster.processes[1]
    assert answer == LeaseAnswer(broker_id=1, broker_epoch=0, pid=process.pid)
    stale = RenewLease(controller_epoch=2, attempt=4, lease_ms=60_000)
    with pytest.raises(ReplicationError, match=r"^STALE_LEASE"):
        call(cluster.client(1), RENEW_LEASE, stale, 10_000)
    assert process.wait(TIMEOUT_S) == 0
    found = read_clean_shutdown(cluster.log_dir(1))
    assert found is not None
    assert found.broker_epoch == 0
    assert read_broker_file(cluster.log_dir(1)) is None


def test_a_guardian_that_was_taken_over_cannot_start_the_broker_again(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=1)
    taken = RenewLease(controller_epoch=2, attempt=5, lease_ms=60_000)
    call(cluster.client(1), RENEW_LEASE, taken, 10_000)
    assert cluster.stop(1) == 0
    refused = cluster.spawn(1, lease="2,4")
    _, said = refused.communicate(timeout=TIMEOUT_S)
    assert refused.returncode == TAKEN_OVER
    assert said.startswith(b"broker_process: STALE_LEASE: the lease of controller epoch 2, attempt 4 is over")
    assert cluster.start(1, lease="2,5").epoch == 1


def test_a_stop_leaves_the_proof_that_the_next_start_continues(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=2, settings={"recovery.trust.page.cache": False})
    cluster.create_topic("orders", (1, 2))
    produce(cluster, 1, 0, 5)
    assert cluster.stop(1) == 0
    assert 1 not in cluster.store.read_brokers().brokers, "its registration is gone before the process is"
    assert cluster.start(1).epoch == 1
    assert cluster.store.read_brokers().broker_epochs[1].clean_since == 0
    produce(cluster, 1, 5 * ROWS, 5)
    cluster.kill(1)
    cluster.start(1)
    assert cluster.store.read_brokers().broker_epochs[1].clean_since == 2, "killed, and the page cache is not trusted"


@pytest.mark.parametrize("cut_bytes", [1, 300])
def test_a_log_that_was_cut_in_mid_batch_recovers_and_catches_up(start_cluster: StartCluster, cut_bytes: int) -> None:
    """As after a host's crash: what is left of the batch goes, the broker is unclean, and the leader gives it again."""
    cluster = start_cluster(brokers=2)
    cluster.create_topic("orders", (2, 1))
    produce(cluster, 2, 0, 20)
    cluster.kill(1)
    (segment,) = cluster.log_dir(1).glob("orders-0.ordersId/*.arrow")
    os.truncate(segment, segment.stat().st_size - cut_bytes)
    epoch = cluster.start(1).epoch
    assert cluster.store.read_brokers().broker_epochs[1].clean_since == epoch, "it has lost what it had acknowledged"

    def is_member_again() -> bool:
        stored = cluster.stored("orders").state
        return stored.isr == {1, 2} and stored.epochs[1] == epoch

    eventually(is_member_again, "the leader has dropped it, and let it in again once it had caught up")
    eventually(lambda: is_written(cluster, 2, 20 * ROWS), "the leader, too, has read that ZooKeeper took it")
    produce(cluster, 2, 21 * ROWS, 4)
    eventually(lambda: same_on_all(cluster, (1, 2)), "the cut log is whole again")


def test_a_broker_whose_replica_is_gone_registers_uncleanly(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=2)
    cluster.create_topic("orders", (2, 1))
    produce(cluster, 2, 0, 5)
    assert cluster.stop(1) == 0
    folder = cluster.log_dir(1) / "orders-0.ordersId"
    folder.rename(cluster.directory / "elsewhere")
    cluster.start(1)
    assert cluster.store.read_brokers().broker_epochs[1].clean_since == 1


def test_a_broker_whose_node_is_removed_registers_again_and_leads_on(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=2)
    cluster.create_topic("orders", (1, 2))
    produce(cluster, 1, 0, 5)
    cluster.remove_registration(1)
    eventually(lambda: cluster.file(1).epoch == 1, "it registers again")
    assert cluster.store.read_brokers().broker_epochs[1].clean_since == 0
    produce(cluster, 1, 5 * ROWS, 5)


def test_a_broker_whose_session_expired_registers_again_and_leads_on(start_cluster: StartCluster) -> None:
    """B2: it hangs for longer than its session lasts; nobody else was told to lead meanwhile."""
    cluster = start_cluster(brokers=2, settings={"zookeeper.session.ms": 1_000})
    cluster.create_topic("orders", (1, 2))
    produce(cluster, 1, 0, 5)
    hung = cluster.processes[1].pid
    with stopped(hung):
        eventually(lambda: 1 not in cluster.store.read_brokers().brokers, "its session expires")
    eventually(lambda: cluster.file(1).epoch > 0, "it registers again")
    assert cluster.store.read_brokers().broker_epochs[1].clean_since == 0, "the same incarnation (I8)"
    produce(cluster, 1, 5 * ROWS, 5)


def readable(cluster: Cluster) -> bool:
    try:
        return len(read(cluster.client(1), topic="orders")) == 1
    except flight.FlightError:
        return False


def test_the_shutdown_action_is_answered_and_then_obeyed(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=1)
    held_open = Put(cluster.client(1), "nothing")
    process = cluster.processes[1]
    order = Shutdown(controller_epoch=1, attempt=0)  # the lease that it was started with
    assert call(cluster.client(1), SHUTDOWN, order, 10_000) == Done()
    assert process.wait(TIMEOUT_S) == 0
    del held_open


def test_a_guardian_that_was_taken_over_shuts_nothing_down(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=1)
    taken = RenewLease(controller_epoch=2, attempt=5, lease_ms=60_000)
    call(cluster.client(1), RENEW_LEASE, taken, 10_000)
    for late in (Shutdown(controller_epoch=2, attempt=4), Shutdown(controller_epoch=1, attempt=9)):
        with pytest.raises(ReplicationError, match=r"^STALE_LEASE"):
            call(cluster.client(1), SHUTDOWN, late, 10_000)
    cluster.create_topic("orders", (1,), min_isr=1)
    produce(cluster, 1, 0, 1)
    later = Shutdown(controller_epoch=2, attempt=6)
    call(cluster.client(1), SHUTDOWN, later, 10_000)
    assert cluster.processes[1].wait(TIMEOUT_S) == 0
    refused = cluster.spawn(1, lease="2,5")
    assert refused.wait(TIMEOUT_S) == TAKEN_OVER, "whoever stopped it holds its lease"


def test_who_may_not_start_says_why_and_exits_so(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=1)
    for process, code, sentence in (
        (cluster.spawn(1), 3, "LOG_DIRECTORY_IN_USE"),
        (cluster.spawn(2, log_dir=cluster.log_dir(1)), 3, "LOG_DIRECTORY_IN_USE"),
        (cluster.spawn(3, cluster_id="another"), 2, "INCONSISTENT_CLUSTER_ID"),
        (cluster.spawn(4, lease="soon"), 2, "CONTROLLER_EPOCH,ATTEMPT"),
    ):
        _, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == code, stderr
        assert sentence in stderr.decode()
