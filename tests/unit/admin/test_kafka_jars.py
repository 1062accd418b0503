"""Jars that are run beside ours are those that were looked at."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from spark_replication.admin.bench.kafka.jars import CONNECTOR_MODULES, DIGESTS, MODULES, complaint, digests


def test_each_jar_that_is_asked_for_has_its_digest() -> None:
    for name, modules in (("kafka", MODULES), ("connector", CONNECTOR_MODULES)):
        known = digests(DIGESTS / f"{name}.sha256")
        assert {module.file_name for module in modules} <= known.keys()
        assert all(len(digest) == 64 and set(digest) <= set("0123456789abcdef") for digest in known.values())


def test_only_those_jars_will_do_and_all_of_them(tmp_path: Path) -> None:
    wanted = {name: sha256(name.encode()).hexdigest() for name in ("a.jar", "b.jar")}
    for name in wanted:
        assert complaint(wanted, tmp_path) == f"{name} is missing"
        (tmp_path / name).write_text("another")
        assert complaint(wanted, tmp_path) == f"{name} is not the file it should be (its digest differs)"
        (tmp_path / name).write_text(name)
    assert complaint(wanted, tmp_path) is None
    (tmp_path / "c.jar").touch()
    assert complaint(wanted, tmp_path) == "c.jar is none of those that are wanted"
    assert complaint(wanted, tmp_path / "none") == "a.jar is missing"
