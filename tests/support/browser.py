"""A browser without a window that tests steer: Chromium, by its DevTools protocol. It reaches only this machine."""

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse

from tests.support.server import PATIENCE, descendants

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-port=0", "about:blank"),
)

PORT_FILE = "DevToolsActivePort"
"""The file of a profile in which the browser says where it can be steered."""


def found() -> str:
    """Return the program of a browser; without one the test is skipped."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not program:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed (Debian: apt install chromium)")
    return program


class Tab:
    """A page in the browser. ``complaints``: what the console and the log have, ``asked``: every URL."""

    def __init__(self, socket: ClientWebSocketResponse, process: subprocess.Popen[bytes]) -> None:
        """``process``: the browser."""
        self._socket = socket
        self._process = process
        self._number = 0
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._loaded = self._crashed = 0

    async def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        await self._send(method, parameters)
        while True:
            told = await self._hear()
            if told.get("id") == self._number:
                assert "error" not in told, told
                result: dict[str, Any] = told["result"]
                return result

    async def _send(self, method: str, parameters: dict[str, Any]) -> None:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})

    async def _hear(self) -> dict[str, Any]:
        told: dict[str, Any] = await self._socket.receive_json(timeout=PATIENCE)
        match told.get("method"):
            case "Log.entryAdded":
                self.complaints.append(told["params"]["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(told["params"]["exceptionDetails"]))
            case "Network.requestWillBeSent":
                self.asked.append(told["params"]["request"]["url"])
            case "Page.loadEventFired":
                self._loaded += 1
            case "Inspector.targetCrashed":
                self._crashed += 1
        return told

    async def begin(self, token: str = "") -> None:
        for domain in ("Page", "Log", "Runtime", "Network", "Inspector"):
            await self.do(f"{domain}.enable")
        if token:
            await self.do("Network.setExtraHTTPHeaders", headers={"Authorization": f"Bearer {token}"})

    async def look(self, width: int, height: int, scheme: str) -> None:
        """Show pages in so many pixels, on a device that prefers ``scheme``: light or dark."""
        is_phone = width < 500
        await self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        await self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def open(self, url: str) -> None:
        await self._load(self.do("Page.navigate", url=url))

    async def crash(self) -> None:
        """End the process that shows the page, as when its memory is full. The tab stays, and can open a page."""
        before = self._crashed
        await self._send("Page.crash", {})
        while self._crashed == before:
            await self._hear()

    def kill(self) -> None:
        """End the whole browser at once, with all its processes."""
        for each in (self._process.pid, *descendants(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self._process.wait(PATIENCE)

    def quit(self) -> None:
        """End the browser as its user does."""
        self._process.terminate()
        self._process.wait(PATIENCE)

    async def click(self, selector: str) -> None:
        """Click on what leads to another page, and wait until that is there."""
        await self._load(self.run(f"document.querySelector({selector!r}).click()"))

    async def _load(self, doing: Any) -> None:
        before = self._loaded
        await doing
        while self._loaded == before:
            await self._hear()

    async def run(self, script: str) -> Any:
        """Return what a script says."""
        told = await self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def picture(self) -> bytes:
        return base64.b64decode((await self.do("Page.captureScreenshot", format="png"))["data"])


@contextlib.asynccontextmanager
async def browsing(folder: Path, token: str = "", flags: tuple[str, ...] = ()) -> AsyncIterator[Tab]:
    """Have a browser with one tab while the block lasts. ``token``: brought with every request. ``flags``: more.

    ``folder``: has its profile, which may be of a browser that has ended.
    """
    profile = folder / "profile"
    (profile / PORT_FILE).unlink(missing_ok=True)
    with (folder / "browser.log").open("w") as log:
        command = [found(), f"--user-data-dir={profile}", *FLAGS, *flags]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        port = await _port(profile, process, folder / "browser.log")
        async with ClientSession() as http:
            page = await _page(http, port)
            async with http.ws_connect(page, max_msg_size=0) as socket:
                tab = Tab(socket, process)
                await tab.begin(token)
                yield tab
    finally:
        process.terminate()
        process.wait(PATIENCE)


async def _page(http: ClientSession, port: str) -> str:
    """Return the address of the one tab, which may come a moment after the browser listens."""
    async with asyncio.timeout(PATIENCE):
        while True:
            async with http.get(f"http://127.0.0.1:{port}/json/list") as response:
                pages = [each for each in await response.json() if each["type"] == "page"]
            if pages:
                [page] = pages
                return str(page["webSocketDebuggerUrl"])
            await asyncio.sleep(0.05)


async def _port(profile: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    told = profile / PORT_FILE
    async with asyncio.timeout(PATIENCE):
        while not told.exists() or not told.read_text().strip():
            assert process.poll() is None, log.read_text()
            await asyncio.sleep(0.05)
    return told.read_text().split()[0]
