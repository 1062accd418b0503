"""A broker's process: `python -m spark_replication.live.broker.process --directory …`.

Each exit code of engine.guarding.guardian_life but 0 comes with one sentence on stderr. Log lines go to stdout.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from spark_replication.config import Settings, settings_from
from spark_replication.decoding import from_json
from spark_replication.engine.guarding.guardian_life import FAILED, IN_USE, STOPPED, TAKEN_OVER, WRONG_USAGE
from spark_replication.errors import DirectoryInUse, InvalidConfig, ReplicationError, StaleLease, WrongCluster
from spark_replication.live.broker.life import BrokerLife, Options
from spark_replication.live.guarding.broker_file import LOG_FILE
from spark_replication.process.logs import log_to_stdout
from spark_replication.process.memory import Collecting, limit_memory
from spark_replication.process.stop_signals import on_stop_signals

# How long a thread waits for another that computes; Python's default is 5 ms. At 200 batches/s, acks=all, on a busy
# machine, p99 was 6.0–19.5 ms with the default and 3.3–3.8 ms with this; throughput was the same.
SWITCH_INTERVAL_S = 0.0005

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    Collecting().start()
    limit_memory(options.settings.broker_memory_bytes_max)
    log_to_stdout(options.directory / LOG_FILE, broker=options.broker_id)
    faulthandler.register(signal.SIGUSR2)  # writes to the log what each thread does at that moment
    life = BrokerLife(options)
    threading.excepthook = lambda ended: life.fail(ended.exc_value)
    on_stop_signals(life.begin_stop)
    try:
        life.run()
    except DirectoryInUse as error:
        return _failed(error, IN_USE)
    except StaleLease as error:
        return _failed(error, TAKEN_OVER)
    except (WrongCluster, InvalidConfig) as error:
        return _failed(error, WRONG_USAGE)
    except ReplicationError as error:
        return _failed(error, FAILED)
    except Exception as error:
        log.exception("this broker ends by a mistake of its own")
        return _failed(error, FAILED)
    return STOPPED


def _failed(error: Exception, code: int) -> int:
    sys.stderr.write(f"broker_process: {error}\n")
    return code


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="broker_process", description="One broker of a spark_replication cluster.")
    parser.add_argument("--directory", required=True, type=Path, help="its own: logs, lock and identity")
    parser.add_argument("--zookeeper", required=True, help="host:port,…/chroot")
    parser.add_argument("--broker-id", required=True, type=int)
    parser.add_argument("--cluster-id", required=True)
    parser.add_argument("--host", required=True, help="to listen on; beyond loopback only with security.mode")
    parser.add_argument("--settings", type=_settings, default=Settings(), help="JSON: names as in conf/*.toml")
    parser.add_argument("--origins", type=_origins, default={}, help="JSON: where settings come from")
    parser.add_argument("--lease", required=True, type=_lease, metavar="CONTROLLER_EPOCH,ATTEMPT")
    found = parser.parse_args(arguments)
    address, slash, chroot = found.zookeeper.partition("/")
    return Options(
        directory=found.directory.resolve(),
        zookeeper=address,
        chroot=slash + chroot if chroot else found.settings.zookeeper_chroot,
        broker_id=found.broker_id,
        cluster_id=found.cluster_id,
        host=found.host,
        settings=found.settings,
        lease=found.lease,
        origins=found.origins,
    )


def _settings(text: str) -> Settings:
    try:
        return settings_from(from_json(text, dict))
    except (msgspec.MsgspecError, InvalidConfig) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _origins(text: str) -> dict[str, str]:
    try:
        return from_json(text, dict[str, str])
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _lease(text: str) -> tuple[int, int]:
    controller_epoch, _, attempt = text.partition(",")
    try:
        return int(controller_epoch), int(attempt)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not CONTROLLER_EPOCH,ATTEMPT") from error


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: Flight's threads serve streams that clients hold open, and Python would wait for them.
    os._exit(code)
