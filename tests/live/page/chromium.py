"""A headless Chromium, driven by its own protocol over one websocket: no driver, nothing that is fetched."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import ProxyHandler, build_opener

import pytest
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "Chromium is missing: sudo apt-get install -y chromium"
START_S = 30.0
ANSWER_S = 30.0
END_S = 10.0
CLOSE_S = 0.5  # it is killed anyway
FRAME_BYTES_MAX = 1 << 28  # a picture


class Said(NamedTuple):
    """What a page has written to its console as a warning or an error, or has thrown."""

    level: str
    text: str


class Tab:
    """Of a Chromium. said: all that went wrong in it."""

    def __init__(self, connection: ClientConnection, session: int) -> None:
        """session: that of Chromium's processes."""
        self._session = session
        self._connection = connection
        self._numbers = itertools.count(1)
        self.said: list[Said] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")
        self.tell("Performance.enable", timeDomain="threadTicks")
        self.tell("Emulation.setFocusEmulationEnabled", enabled=True)

    def tell(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            heard = json.loads(self._connection.recv(timeout=ANSWER_S))
            self._hear(heard)
            if heard.get("id") == number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                return heard["result"]

    def _hear(self, heard: dict[str, Any]) -> None:
        given = heard.get("params", {})
        match heard.get("method"):
            case "Runtime.exceptionThrown":
                self.said.append(Said("exception", json.dumps(given["exceptionDetails"])))
            case "Runtime.consoleAPICalled" if given["type"] in ("error", "warning", "assert"):
                self.said.append(Said(given["type"], json.dumps(given["args"])))
            case "Log.entryAdded" if given["entry"]["level"] in ("error", "warning"):
                self.said.append(Said(given["entry"]["level"], f"{given['entry']['text']} {given['entry'].get('url')}"))

    def size(self, width: int, height: int, *, is_dark: bool) -> None:
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.tell("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self.tell("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        found = self.tell("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def worked_s(self) -> float:
        """The processor time of the page's main thread so far: its waits for a full machine do not count."""
        found = self.tell("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))

    def renderers(self) -> list[int]:
        """The processes that draw pages."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError):  # it has ended
                session = int((process / "stat").read_text().rpartition(")")[2].split()[3])
                if session == self._session and b"--type=renderer" in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        return found

    def text(self) -> str:
        return str(self.ask("document.body?.innerText ?? ''"))

    def press(self, key: str, code: int = 0) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.tell("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def wait(self, is_true: Callable[[], object], what: str, timeout_s: float = 20.0) -> float:
        """After how many seconds it came true."""
        began_s = time.monotonic()
        while time.monotonic() < began_s + timeout_s:
            if is_true():
                return time.monotonic() - began_s
            time.sleep(0.02)
        raise AssertionError(f"not within {timeout_s} s: {what}; {self.said}; the page says: {self.text()[:2_000]}")

    def picture(self, path: Path, *, whole: bool = False) -> None:
        found = self.tell(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole=whole)
        )
        path.write_bytes(base64.b64decode(found["data"]))

    def _clip(self, *, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.tell("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6_000), "scale": 1}
        return {"clip": clip}


@contextmanager
def chromium(folder: Path) -> Iterator[Tab]:
    """folder: for its profile. It fails, and says what installs it, where there is none."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.fail(MISSING)
    profile = folder / "profile"
    profile.mkdir(parents=True)
    # What Chromium leaves behind when it is killed goes with a folder whose name is short: a socket lies in it.
    kept = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            (
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--hide-scrollbars",
                "--remote-debugging-port=0",
                f"--user-data-dir={profile}",
                "about:blank",
            ),
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": kept.name},
            start_new_session=True,
        )
    try:
        with connect(
            _tab_of(process, profile),
            max_size=FRAME_BYTES_MAX,
            proxy=None,
            compression=None,
            ping_interval=None,
            close_timeout=CLOSE_S,
        ) as connection:
            yield Tab(connection, process.pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_S)
        kept.cleanup()


def _tab_of(process: subprocess.Popen[bytes], profile: Path) -> str:
    """Where its first tab listens."""
    told = profile / "DevToolsActivePort"
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, f"Chromium has ended at its start: see {profile.parent / 'chromium.log'}"
        lines = told.read_text().splitlines() if told.exists() else []
        if len(lines) > 1:
            opener = build_opener(ProxyHandler({}))
            with opener.open(f"http://127.0.0.1:{lines[0]}/json/list", timeout=ANSWER_S) as answer:
                tabs = json.load(answer)
            pages = [tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"]
            if pages:
                return str(pages[0])
        time.sleep(0.05)
    raise AssertionError(f"Chromium was not ready after {START_S} s: see {profile.parent / 'chromium.log'}")
