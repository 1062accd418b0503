"""What people mistype: one sentence that says what to do instead, an exit code that is not 0, nothing on standard
output. No cluster is asked, but where that is what is wrong."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.unit.admin.conftest import Run

NOWHERE = "-b 127.0.0.1:1 --wait-for-cluster 0"
WRONG_USAGE, FAILED = 2, 1
FILES = {
    "empty": "",
    "text.txt": "hello",
    "rows.jsonl": '{"id": 1}\n',
    "no.toml": "a = \n",
    "unknown.toml": "zzz = 1\n",
    "no.parquet": "PAR1",
    "list.json": "[1]",
    "other.json": '{"name": 1}',
    "plan.json": "{}",
    "no.yaml": "- a: [\n",
    "name.yaml": "- name: 7\n",
}

INPUTS = [
    ("nonsense", WRONG_USAGE, "No such command 'nonsense'"),
    ("helth", WRONG_USAGE, "Did you mean 'health'"),
    ("--nonsense", WRONG_USAGE, "No such option '--nonsense'"),
    # Where the cluster is.
    ("topics", WRONG_USAGE, "Missing option '--bootstrap' / '-b'"),
    ("topics -b 127.0.0.1", FAILED, "it is host:port,… of any brokers, zk://host:port/chroot, or delta:/path"),
    ("topics -b 127.0.0.1:port", FAILED, "it is host:port,…"),
    ("topics -b 127.0.0.1:99999", FAILED, "it is host:port,…"),
    ("topics -b 127.0.0.1:0", FAILED, "it is host:port,…"),
    ("topics -b http://a:1", FAILED, "it is host:port,…"),
    ("topics -b zk://", FAILED, "names no chroot, such as zk:///spark_replication"),
    ("topics -b zk://127.0.0.1:1", FAILED, "names no chroot, such as zk://127.0.0.1:1/spark_replication"),
    ("topics -b delta:", FAILED, "'delta:' names no path"),
    ("topics -b delta:/no/such --wait-for-cluster 0", FAILED, "name the mirror.path of a cluster after delta:"),
    (f"topics {NOWHERE}", FAILED, "nobody has answered at '127.0.0.1:1' for 0 s"),
    (f"topics {NOWHERE} --format xml", WRONG_USAGE, "'xml' is not one of 'table', 'json'"),
    (f"topics {NOWHERE} --watch 0", WRONG_USAGE, "0.0 is not in the range x>=0.2"),
    (f"topics {NOWHERE} --wait-for-cluster -1", WRONG_USAGE, "-1.0 is not in the range x>=0"),
    # Settings.
    (f"topics {NOWHERE} --config none.toml", WRONG_USAGE, "'none.toml' does not exist"),
    (f"topics {NOWHERE} --config no.toml", FAILED, "no.toml is no TOML: Invalid value (at line 1, column 5)"),
    (f"topics {NOWHERE} --config unknown.toml", FAILED, "unknown setting zzz: `spark-replication settings` lists them"),
    (f"topics {NOWHERE} --set nonsense", FAILED, "'nonsense' is not NAME=VALUE"),
    (f"topics {NOWHERE} --set page.prt=1", FAILED, "unknown setting page.prt: did you mean page.port?"),
    (f"topics {NOWHERE} --set page.port=70000", FAILED, "page.port=70000: it takes 0 to 65535"),
    (f"topics {NOWHERE} --set security.mode=maybe", FAILED, "it takes none or token or tls"),
    (f"topics {NOWHERE} --set security.mode=token", FAILED, "security.mode=token needs security.token.file"),
    (f"topics {NOWHERE} --set security.mode=tls", FAILED, "needs security.tls.ca.file"),
    (
        f"topics {NOWHERE} --set security.mode=token --set security.token.file=none",
        FAILED,
        "security.token.file=none cannot be read: No such file or directory",
    ),
    ("settings show -b 127.0.0.1:1 --of nobody", WRONG_USAGE, "'nobody' is not cluster, controller, or the id of a"),
    ("settings set -b 127.0.0.1:1", WRONG_USAGE, "Missing argument 'NAME=VALUE…'"),
    # Topics.
    (f"topics create {NOWHERE}", WRONG_USAGE, "Missing argument 'TOPIC'"),
    (f"topics create orders {NOWHERE}", WRONG_USAGE, "Missing option '--schema'"),
    (f"topics create orders --schema id {NOWHERE}", FAILED, "Name one such as int64, string or timestamp[us]"),
    (f"topics create orders --schema id:int65 {NOWHERE}", FAILED, "No type alias for int65. Name one such as int64"),
    (f"topics create orders --schema id:int8,id:int8 {NOWHERE}", FAILED, "the schema has 'id' twice"),
    (f"topics create orders --schema '' {NOWHERE}", FAILED, "a schema has a column at least, such as id:int64"),
    (f"topics create orders --schema none.parquet {NOWHERE}", FAILED, "none.parquet cannot be read"),
    (f"topics create orders --schema no.parquet {NOWHERE}", FAILED, "no.parquet has no schema that can be read"),
    (f"topics create orders --schema list.json {NOWHERE}", FAILED, "a JSON Schema has `properties`, a schema of Spark"),
    (f"topics create orders --schema other.json {NOWHERE}", FAILED, "a JSON Schema has `properties`"),
    (f"topics create orders --schema id:int8 -p 0 {NOWHERE}", WRONG_USAGE, "0 is not in the range x>=1"),
    (f"topics create orders --schema id:int8 -p many {NOWHERE}", WRONG_USAGE, "'many' is not a valid integer"),
    (f"topics create orders --schema id:int8 retention.ms {NOWHERE}", FAILED, "'retention.ms' is not NAME=VALUE"),
    (f"topics describe {NOWHERE}", WRONG_USAGE, "Missing argument 'TOPIC…'"),
    (f"topics configure orders {NOWHERE}", WRONG_USAGE, "Name a setting and its value, such as retention.ms=86400000"),
    (f"topics add-partitions orders {NOWHERE}", WRONG_USAGE, "Missing argument 'COUNT'"),
    (f"topics add-partitions orders -1 {NOWHERE}", WRONG_USAGE, "-1 is not in the range x>=1"),
    (f"topics widen orders {NOWHERE}", WRONG_USAGE, "Missing argument 'NAME:TYPE…'"),
    # Records.
    (f"produce {NOWHERE}", WRONG_USAGE, "Missing argument 'TOPIC'"),
    (f"produce orders none.jsonl {NOWHERE}", WRONG_USAGE, "'none.jsonl' does not exist"),
    (f"produce orders text.txt {NOWHERE}", FAILED, "text.txt has none of the suffixes .parquet"),
    (f"produce orders rows.jsonl --acks 2 {NOWHERE}", WRONG_USAGE, "'2' is not one of 'all', '1', '0'"),
    (f"produce orders rows.jsonl -p -1 {NOWHERE}", WRONG_USAGE, "-1 is not in the range x>=0"),
    (f"produce orders rows.jsonl -p 1 -k id {NOWHERE}", WRONG_USAGE, "A key chooses the partition"),
    (f"consume {NOWHERE}", WRONG_USAGE, "Missing argument 'TOPIC'"),
    (f"consume orders --from soon {NOWHERE}", WRONG_USAGE, "'soon' is neither an offset nor earliest or latest"),
    (f"consume orders --from-time soon {NOWHERE}", WRONG_USAGE, "'soon' is no time such as 2026-11-21T10:00:00Z"),
    (f"consume orders --from 5 --from-time 2026-01-01T00:00:00Z {NOWHERE}", WRONG_USAGE, "two places to start at"),
    # Groups.
    ("groups", WRONG_USAGE, "Missing option '--bootstrap' / '-b'"),
    (f"groups describe {NOWHERE}", WRONG_USAGE, "Missing argument 'GROUP'"),
    (f"groups describe 'a b' {NOWHERE}", FAILED, "'a b' is no group's name: letters, digits"),
    (f"groups delete 'a b' --yes {NOWHERE}", FAILED, "'a b' is no group's name: letters, digits"),
    (f"groups reset etl {NOWHERE}", WRONG_USAGE, "name one of --to-offset, --to-earliest, --to-latest, --to-time and"),
    (f"groups reset etl --to-latest --shift 5 {NOWHERE}", WRONG_USAGE, "name one of --to-offset, --to-earliest"),
    (
        f"groups reset etl --to-latest -p 0 {NOWHERE}",
        WRONG_USAGE,
        "a partition is of one topic: name that with --topic",
    ),
    (f"groups reset etl --to-offset -1 {NOWHERE}", WRONG_USAGE, "-1 is not in the range x>=0"),
    (f"groups reset etl --to-offset {1 << 63} {NOWHERE}", FAILED, "to=9223372036854775808: it is an offset"),
    (f"groups reset etl --shift many {NOWHERE}", WRONG_USAGE, "'many' is not a valid integer"),
    (f"groups reset etl --to-time soon {NOWHERE}", WRONG_USAGE, "'soon' is no time such as 2026-11-21T10:00:00Z"),
    (f"groups reset 'a b' --to-latest {NOWHERE}", FAILED, "'a b' is no group's name: letters, digits"),
    (f"consume orders --to -1 {NOWHERE}", WRONG_USAGE, "-1 is not in the range x>=0"),
    (f"consume orders --to 5 {NOWHERE}", WRONG_USAGE, "an offset is of one partition: name that with --partition, too"),
    (f"consume orders --from 5 {NOWHERE}", WRONG_USAGE, "an offset is of one partition: name that with --partition"),
    (f"consume orders -n 0 {NOWHERE}", WRONG_USAGE, "0 is not in the range x>=1"),
    (f"consume orders --columns id,,item {NOWHERE}", WRONG_USAGE, "'id,,item' has a comma without a name"),
    (f"consume orders --where amount {NOWHERE}", WRONG_USAGE, "'amount' is no condition such as 'amount > 5' (in quo"),
    (f"consume orders --where 'id => 5' {NOWHERE}", WRONG_USAGE, "'id => 5' is no condition such as 'amount > 5'"),
    (f"topics head {NOWHERE}", WRONG_USAGE, "Missing argument 'TOPIC'"),
    (f"topics tail orders -n none {NOWHERE}", WRONG_USAGE, "'none' is not a valid integer range"),
    (f"topics tail orders --where 'id in 1,,2' {NOWHERE}", WRONG_USAGE, "'id in 1,,2' has a comma without a value"),
    ("log dump none", WRONG_USAGE, "'none' does not exist"),
    ("log dump text.txt", WRONG_USAGE, "text.txt is no segment: its name would be 20 digits and .arrow or .index"),
    ("log verify none", WRONG_USAGE, "'none' does not exist"),
    # Leaders and replicas.
    (f"leader elect --kind best orders-0 {NOWHERE}", WRONG_USAGE, "'best' is not one of 'preferred'"),
    (f"reassign plan {NOWHERE}", WRONG_USAGE, "Name replicas (PARTITION=IDS), or give --over"),
    (f"reassign plan orders-0 {NOWHERE}", WRONG_USAGE, "'orders-0' is not of the form orders-3=1,2,3"),
    (f"reassign plan orders-0=a {NOWHERE}", WRONG_USAGE, "'a' is not a list of broker ids such as 1,2,3"),
    (f"reassign apply none.json {NOWHERE}", WRONG_USAGE, "'none.json': No such file or directory"),
    (f"reassign apply plan.json {NOWHERE}", FAILED, "Make one by `reassign plan`"),
    # People.
    (f"acls add alice {NOWHERE}", WRONG_USAGE, "Missing argument 'RIGHT'"),
    (f"acls add alice fly topic orders {NOWHERE}", WRONG_USAGE, "'fly' is not one of 'describe', 'read'"),
    (f"quotas set alice speed 5 {NOWHERE}", WRONG_USAGE, "'speed' is not one of 'producer_byte_rate'"),
    (f"quotas set alice streams 0 {NOWHERE}", WRONG_USAGE, "0 is not in the range x>=1"),
    (f"quotas set alice streams -5 {NOWHERE}", WRONG_USAGE, "-5 is not in the range x>=1"),
    ("tokens add none alice", WRONG_USAGE, "Missing option '--client-file'"),
    ("certificates", WRONG_USAGE, "Missing argument 'DIRECTORY'"),
    # This host.
    ("start --brokers none", WRONG_USAGE, "'none' is not a valid integer"),
    ("start --detach", FAILED, "name one with --directory"),
    ("stop --directory none", WRONG_USAGE, "'none' does not exist"),
    ("zookeeper status --directory none", FAILED, "no ZooKeeper was ever started in none"),
    ("guide nonsense", WRONG_USAGE, "there is no page or section 'nonsense'. `spark-replication guide` lists them"),
    ("completion tcsh", WRONG_USAGE, "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    # The simulator.
    ("scenario none.yaml", WRONG_USAGE, "none.yaml is not there"),
    ("scenario no.yaml", WRONG_USAGE, "no.yaml is no YAML"),
    ("scenario name.yaml", WRONG_USAGE, "name.yaml"),
    ("sim --seeds 9..1", WRONG_USAGE, "'9..1' holds no seed: A..B has A at or below B"),
    ("sim --seed -1", WRONG_USAGE, "-1 is not in the range x>=0"),
]


@pytest.mark.parametrize(("typed", "code", "says"), INPUTS, ids=[typed.partition(" -b")[0] for typed, _, _ in INPUTS])
def test_it_is_one_sentence_that_says_what_to_do(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    ran = run(*shlex.split(typed))
    assert (ran.exit, ran.out) == (code, "")
    (told,) = ran.err.splitlines()
    assert re.match(r"error: [A-Z_]+: \S", told), told
    assert told.startswith("error: WRONG_USAGE: ") == (code == WRONG_USAGE)
    assert says in told


@pytest.mark.parametrize(
    ("typed", "where"),
    [
        ("nonsense", "spark-replication --help"),
        ("--nonsense", "spark-replication --help"),
        ("topics nonsense -b 127.0.0.1:1", "spark-replication topics --help"),
        ("topics create", "spark-replication topics create --help"),
        ("topics configure orders -b 127.0.0.1:1", "spark-replication topics configure --help"),
    ],
)
def test_wrong_usage_says_whose_help_to_read(run: Run, typed: str, where: str) -> None:
    assert run(*shlex.split(typed)).err.endswith(f"(see {where})\n")


def test_a_group_without_a_command_shows_its_help(run: Run) -> None:
    ran = run("reassign")
    assert ran.exit == WRONG_USAGE
    assert ran.err.startswith("Usage: spark-replication reassign")
