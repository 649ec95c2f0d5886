"""`qtui serve`: who is let in, and an app in a page that takes keys and ends with it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pyte
import pytest
from aiohttp import ClientSession, WSServerHandshakeError
from processes import is_gone

from qtui.cli.browser.server import MOST_APPS, BrowserServer
from qtui_core.errors import UsageError


async def test_who_is_let_in(capsys):
    """Every other name, origin and token is refused with a sentence, for pages and for keys."""
    server = BrowserServer(["a <model>"])
    serving = asyncio.create_task(server.run())
    port = server.port
    wrong = server.url[:-2] + ("A" if server.url[-2] != "A" else "B") + "/"
    async with ClientSession() as session:

        async def asked(url, **headers):
            async with session.get(url, headers=headers) as response:
                return response.status, await response.text(), response.headers

        for _ in range(100):
            if "Ctrl+C" in (said := capsys.readouterr().err):
                break
            await asyncio.sleep(0.02)
        assert server.url in said
        status, page, headers = await asked(server.url)
        assert status == 200
        assert "qtui a &lt;model&gt;" in page
        # No address but its own socket: the page loads nothing from elsewhere.
        own = f"ws://127.0.0.1:{port}{server.url.partition(str(port))[2]}ws"
        assert re.findall(r"\w+://[^\"']+", page) == [own]
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        for local in ("127.0.0.1:1", "localhost:1", "localhost"):
            tunnelled = {"Host": local, "Origin": f"http://{local}"}
            assert (await asked(server.url, **tunnelled))[0] == 200
        assert (await asked(f"{server.url}static/js/textual.js"))[0] == 200
        refused = [
            (f"http://127.0.0.1:{port}/", {}, "whole address"),
            (wrong, {}, "whole address"),
            (f"{wrong}ws", {}, "whole address"),
            (f"{server.url}static/../server.py", {}, "whole address"),
            (server.url, {"Host": "example.org"}, "localhost only"),
            (server.url, {"Host": f"example.org:{port}"}, "localhost only"),
            (server.url, {"Host": f"127.0.0.1.example.org:{port}"}, "localhost only"),
            (server.url, {"Origin": "http://example.org"}, "own pages"),
            (server.url, {"Origin": f"http://localhost:{port}"}, "own pages"),
            (f"{server.url}ws", {"Origin": "null"}, "own pages"),
        ]
        for url, sent, sentence in refused:
            status, text, _ = await asked(url, **sent)
            assert (status, sentence in text) == (403, True), (url, sent, text)
        with pytest.raises(WSServerHandshakeError):
            await session.ws_connect(f"{server.url}ws", headers={"Origin": "http://example.org"})
        # Every page has an app, and there are so many of them.
        server._open.update(asyncio.create_task(asyncio.sleep(60)) for _ in range(MOST_APPS))
        status, text, _ = await asked(f"{server.url}ws")
        assert (status, "Close one" in text) == (503, True)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


def test_a_port_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match=r"in use.*--port"):
            BrowserServer(["demo"], taken.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["the page", "the server"])
async def test_an_app_in_a_page(killed, tmp_path):
    """It draws, takes a key, and ends with its page or its server, however that ends."""
    with (tmp_path / "said").open("w+") as said:
        server = subprocess.Popen(
            [sys.executable, "-m", "qtui", "serve", "demo"], stderr=said, cwd=tmp_path
        )
        try:
            url = await _soon(lambda: re.search(r"http://\S+/", Path(said.name).read_text()))
            await _use(url[0], server, killed)
        finally:
            server.terminate()
        assert server.wait(30) == (-signal.SIGKILL if killed == "the server" else 0)


async def _use(url, server, killed):
    screen = pyte.Screen(120, 40)
    terminal = pyte.ByteStream(screen)
    async with ClientSession() as session:
        origin = {"Origin": url[: url.index("/", 7)]}
        page = await session.ws_connect(
            f"{url}ws?width=120&height=40", headers=origin, max_msg_size=0
        )

        async def until(text):
            async with asyncio.timeout(60):
                while not any(text in line for line in screen.display):
                    terminal.feed((await page.receive()).data)

        await until("rounding")
        await page.send_json(["stdin", "4"])
        await until("at the peak")
        app = await _soon(lambda: _children(server.pid))
        if killed == "the page":
            await page.close()
        else:
            server.kill()
        assert is_gone(app[0], 30)


async def _soon(found):
    for _ in range(600):
        if result := found():
            return result
        await asyncio.sleep(0.1)
    raise AssertionError("nothing came in a minute")


def _children(pid):
    return [
        int(child)
        for task in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]
