"""The arguments of a broker's process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_replication.live.broker.process import _options

NEEDED = ("--zookeeper=127.0.0.1:1/a", "--broker-id=1", "--cluster-id=c", "--host=127.0.0.1", "--lease=1,1")


def test_where_settings_come_from_is_handed_on(tmp_path: Path) -> None:
    settings, origins = {"retention.ms": 5}, {"retention.ms": "file /etc/own.toml"}
    needed = (f"--directory={tmp_path}", *NEEDED)
    found = _options([*needed, f"--settings={json.dumps(settings)}", f"--origins={json.dumps(origins)}"])
    assert (found.settings.retention_ms, found.origins) == (5, origins)
    assert _options(needed).origins == {}  # a guardian of an earlier release says nothing


@pytest.mark.parametrize("origins", ["no JSON", "[]", '{"retention.ms": 1}'])
def test_what_is_no_origin_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], origins: str) -> None:
    with pytest.raises(SystemExit) as ended:
        _options([f"--directory={tmp_path}", *NEEDED, f"--origins={origins}"])
    assert ended.value.code == 2
    assert "argument --origins" in capsys.readouterr().err
