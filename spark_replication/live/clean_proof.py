"""What a broker can prove of its last life when it starts (I8), read from its directory; core/clean_chain judges it."""

from __future__ import annotations

from pathlib import Path

from spark_replication.core.law import clean_chain
from spark_replication.core.law.clean_chain import losses
from spark_replication.storage.broker_directory import (
    boot_id,
    directory_mark,
    read_clean_shutdown,
    read_start_record,
)

__all__ = ["losses", "proven_epoch"]


def proven_epoch(directory: Path, *, trust_page_cache: bool) -> int | None:
    """Read before recovery, which drops the proofs if it must cut. None: there is no proof."""
    clean = read_clean_shutdown(directory)
    start = read_start_record(directory)
    here = (boot_id(), directory_mark(directory))
    return clean_chain.proven_epoch(
        None if clean is None else clean.broker_epoch,
        None if start is None else start.epoch,
        same_boot_and_directory=start is not None and (start.boot_id, start.directory_mark) == here,
        trust_page_cache=trust_page_cache,
    )
