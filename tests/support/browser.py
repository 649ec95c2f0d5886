"""A page in a headless Chromium, driven through its DevTools protocol."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser")) if p), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


class Page:
    """`requests` has every address that was asked for, `complaints` what the console said."""

    def __init__(self, socket: Any) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while (message := await self._socket.receive_json()).get("id") != number:
            about = message.get("params", {})
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            elif message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.complaints.append(str(about))
        assert "error" not in message, message
        return message["result"]

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Waits until an expression is true."""
        async with asyncio.timeout(60):
            while not await self.run(script):
                await asyncio.sleep(0.1)


@asynccontextmanager
async def opened(url: str, folder: Path, **metrics: Any) -> AsyncIterator[Page]:
    """A page at `url` in a browser of its own, whose profile is in `folder`."""
    from aiohttp import ClientSession

    assert CHROMIUM is not None
    argv = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    argv += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    chromium = subprocess.Popen(argv, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        async with ClientSession() as session, asyncio.timeout(120):
            port = folder / "DevToolsActivePort"
            while not port.exists() or not port.read_text():
                await asyncio.sleep(0.1)
            listed = f"http://127.0.0.1:{port.read_text().split()[0]}/json"
            async with session.get(listed) as response:
                pages = [p for p in await response.json() if p["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as ws:
                page = Page(ws)
                for domain in ("Network", "Log", "Runtime", "Page"):
                    await page.call(f"{domain}.enable")
                await page.call("Page.navigate", url=url)
                await page.until(
                    "document.readyState === 'complete' && location.href !== 'about:blank'"
                )
                yield page
    finally:
        chromium.terminate()
        chromium.wait()
