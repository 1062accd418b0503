"""An S3 store of a test's own, as a process on loopback: delta-rs does not let this one's threads answer everything."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.live.mirror.s3_server import HOST

BUCKET = "lake"
MIRROR = f"s3a://{BUCKET}/mirror"
KEY_ID, SECRET = "reader-or-writer", "secret-of-the-store"
TIMEOUT_S = 20.0


class ObjectStore:
    def __init__(self, **environment: str) -> None:
        """environment: what tests.live.mirror.s3_server knows, by its name."""
        self.port = 0
        self._server_environment = {**os.environ, **environment}
        self.up()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that reads it."""
        return {name.upper(): value for name, value in self.options.items()}

    def options_file(self, directory: Path) -> Path:
        """mirror.storage.file."""
        file = directory / "store.toml"
        file.touch(0o600)
        file.write_text("".join(f'{name} = "{value}"\n' for name, value in self.options.items()))
        return file

    def down(self) -> None:
        """With all that it had."""
        self._server.kill()
        self._server.wait(TIMEOUT_S)
        assert self._server.stdout is not None
        self._server.stdout.close()

    def up(self) -> None:
        command = [sys.executable, "-m", "tests.live.mirror.s3_server", str(self.port)]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._server_environment)
        assert self._server.stdout is not None
        self.port = int(self._server.stdout.readline())
        asked = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(asked, timeout=TIMEOUT_S).close()

    @property
    def options(self) -> dict[str, str]:
        return {
            "aws_access_key_id": KEY_ID,
            "aws_secret_access_key": SECRET,
            "aws_region": "us-east-1",
            "aws_endpoint_url": self.endpoint,
            "aws_allow_http": "true",
        }
