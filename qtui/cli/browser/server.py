"""The app in a browser: textual-serve's server, which anyone on this machine could use, behind a
token.

Each page has an app of its own, a child process that textual-serve speaks to. Every address begins
with the token, so that another user of this machine finds nothing here, nor does another site that
is open in the same browser: a request must name this machine (a foreign name may lead here by DNS
rebinding) and must come from a page of this server.
"""

from __future__ import annotations

import asyncio
import html
import logging
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from string import Template
from typing import Any, Final

from aiohttp import web
from textual_serve.server import Server

from qtui.ending import say
from qtui_core.errors import UsageError
from qtui_core.quantities import plural

HOST: Final = "127.0.0.1"
#: The names of this machine that a request may give, whatever the port: a tunnel may have another.
_NAMES: Final = {HOST, "localhost"}
#: Apps at a time. Each has an engine of its own, which loads torch.
MOST_APPS: Final = 4
#: Nothing from outside, neither a font nor a script, and in no other site's frame.
_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self' ws:; base-uri 'none'; "
    "frame-ancestors 'none'"
)
#: Seconds that the apps may take to end when the server does.
_ENDING: Final = 5.0


class BrowserServer(Server):
    """One model's app in every page that is opened, for those who know the token.

    Args:
        arguments: of `qtui`, for the app in a page: the model, and how it looks.
        port: that the server listens on; 0 for one that is free. A UsageError says that another
            program has it.
    """

    def __init__(self, arguments: list[str], port: int = 0) -> None:
        self._socket = _listening(port)
        self._token = secrets.token_urlsafe(32)
        self._open: set[asyncio.Task[Any]] = set()
        # exec: textual-serve starts a shell, and the app must be its own child.
        command = shlex.join([sys.executable, "-m", "qtui", *arguments])
        found = self._socket.getsockname()[1]
        super().__init__(f"exec {command}", HOST, found, title=f"qtui {arguments[0]}")
        # Its one log is of what a page sends that is not its protocol.
        logging.getLogger("textual-serve").addHandler(logging.NullHandler())
        logging.getLogger("textual-serve").propagate = False

    @property
    def url(self) -> str:
        """The address for the browser, with the token."""
        return f"http://{HOST}:{self.port}/{self._token}/"

    async def run(self) -> None:
        """Serves until it is cancelled, and then ends every app."""
        runner = web.AppRunner(await self._make_app(), shutdown_timeout=_ENDING)
        await runner.setup()
        try:
            await web.SockSite(runner, self._socket).start()
            say(f"The app is at {self.url}")
            say(
                "From another machine: ssh -L "
                f"{self.port}:{HOST}:{self.port} {socket.gethostname()}, then open that address."
            )
            say("Whoever has the address can use your account: keep it secret. Ctrl+C ends this.")
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _make_app(self) -> web.Application:
        own = f"/{self._token}"
        app = web.Application(middlewares=[_from_this_machine])
        app.add_routes(
            [
                web.get(f"{own}/", self.handle_index),
                web.get(f"{own}/ws", self.handle_websocket),
                web.get(f"{own}/download/{{key}}", self.handle_download),
                web.static(f"{own}/static", self.statics_path),
            ]
        )
        app.on_shutdown.append(self.on_shutdown)
        return app

    async def on_shutdown(self, app: web.Application) -> None:
        for page in self._open:
            page.cancel()

    async def handle_index(self, request: web.Request) -> web.Response:
        nonce = secrets.token_urlsafe()
        page = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
        text = page.substitute(
            title=html.escape(self.title),
            socket=html.escape(f"ws://{request.host}/{self._token}/ws"),
            nonce=nonce,
        )
        headers = {
            "Content-Security-Policy": _POLICY.format(nonce=nonce),
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        if len(self._open) >= MOST_APPS:
            opened = plural(MOST_APPS, "page")
            full = f"{opened} are open already, which is the most. Close one.\n"
            raise web.HTTPServiceUnavailable(text=full)
        page = asyncio.current_task()
        assert page is not None
        self._open.add(page)
        try:
            return await super().handle_websocket(request)
        finally:
            self._open.discard(page)


def _listening(port: int) -> socket.socket:
    listening = socket.socket()
    # As asyncio does: a port whose last connections are ending can be taken again.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        listening.close()
        raise UsageError(
            f"Port {port} cannot be used ({os.strerror(error.errno or 0)}). "
            "Give another --port, or leave it out."
        ) from error
    return listening


@web.middleware
async def _from_this_machine(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuses what no page of this server would ask for, in a sentence."""
    name = request.host.rpartition(":")[0] or request.host
    origin = request.headers.get("Origin")
    if name not in _NAMES:
        return _refused(f"This server answers to {HOST} and localhost only.")
    if origin is not None and origin != f"http://{request.host}":
        return _refused("This server answers its own pages only.")
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return _refused("Nothing is here. Open the whole address that `qtui serve` printed.")


def _refused(sentence: str) -> web.Response:
    return web.Response(status=403, text=f"{sentence}\n")
