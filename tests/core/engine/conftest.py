"""Engines for tests of their answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from qtui.engine.client import EngineClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineClient]:
    """One engine and event loop for all tests of a file. Each request names its model, as in the
    app, whose engine lives as long as the app."""
    client = EngineClient()
    yield client
    await client.close()
