"""broker.json in a broker's directory: where the process that lives there serves. Written when it does, removed when it
stops cleanly: whoever reads it asks the directory's lock, or the process, whether it is still so."""

from __future__ import annotations

from pathlib import Path

from spark_replication.model import Epoch, Value, decode, encode
from spark_replication.storage.state_files import read_file, remove_file, replace_file

BROKER_FILE = "broker.json"


class BrokerFile(Value, frozen=True, kw_only=True):
    pid: int
    host: str
    port: int
    replication_port: int
    epoch: Epoch


def write_broker_file(directory: Path, found: BrokerFile) -> None:
    replace_file(directory / BROKER_FILE, encode(found), durable=False)


def read_broker_file(directory: Path) -> BrokerFile | None:
    path = directory / BROKER_FILE
    data = read_file(path)
    return decode(data, BrokerFile, str(path)) if data is not None else None


def remove_broker_file(directory: Path) -> None:
    remove_file(directory / BROKER_FILE)
