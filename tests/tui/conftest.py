"""What the tests of the terminal app share: the app under a pilot, and which of them are slow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import textual.app
import textual.pilot
from quantize_model import write_model
from screens import Running, drained, settled, until
from spare_children import SpareChildren
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

from qtui.tui.app import QtuiApp
from qtui.tui.config import Settings

FOLDER = Path(__file__).parent
#: Files whose every test waits for the real engine in a process of its own, or that draw every
#: panel at every size and depth.
SLOW = (
    "test_activations_view",
    "test_codebooks_panel_layout",
    "test_codebooks_panel_work",
    "test_outliers_view",
    "test_quantize_maps_view",
    "test_quantize_one_subject",
    "test_quantize_panel_layout",
    "test_quantize_panel_recovery",
    "test_quantize_panel_states",
    "test_quantize_panel_work",
    "test_shell_layout",
    "test_shell_pty",
    "test_spare_children",
    "test_train_layout",
    "test_tui_memory_layout",
    "test_tui_memory_mouse",
)


#: All tests of the app run in one event loop, as a child belongs to that in which it was started.
ONE_LOOP = pytest.mark.asyncio(loop_scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks those tests slow, and gives all tests of the app one event loop."""
    for item in items:
        if item.path.parent != FOLDER:
            continue
        if item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)
        if pytest_asyncio.is_async_test(item):
            item.add_marker(ONE_LOOP, append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def spare_children() -> AsyncIterator[SpareChildren]:
    """Those of a worker."""
    spare = SpareChildren()
    yield spare
    await spare.end()


@pytest.fixture(autouse=True)
def spared(
    request: pytest.FixtureRequest, spare_children: SpareChildren, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients get children that others are done with, unless a test is marked `own_children`."""
    if request.node.get_closest_marker("own_children") is None:
        spare_children.install(monkeypatch)


@pytest.fixture(autouse=True)
def no_clock_between_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each key, Textual's pilot waits until the process has used no processor time for 20 ms.
    This takes 40 ms per key and proves nothing on a busy machine, where a process may get no time
    although it has work."""
    for module in (textual.app, textual.pilot):
        monkeypatch.setattr(module, "wait_for_idle", drained)


@pytest.fixture(autouse=True, scope="session")
def sheets_parsed_once() -> Iterator[None]:
    """Apps of one theme have the same rules; parsing them takes a sixth of a boot."""
    parse = Stylesheet._parse_rules
    parsed: dict[tuple[Any, ...], Any] = {}

    def parsed_before(sheet: Stylesheet, *asked: Any, **named: Any) -> Any:
        key = (*asked, *named.items(), *sheet._variables.items())
        if key not in parsed:
            parsed[key] = parse(sheet, *asked, **named)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parsed_before)
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the model of quantize_model.py."""
    return write_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    """An app under a pilot: `async with running(size=(80, 24), theme="qtui-light") as pilot`.

    Nothing of the user's machine is read or written: no configuration, the clipboard's file, the
    log and exports in a temporary folder, no tmux.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("TMUX", "NO_COLOR", "COLORFGBG"):
        monkeypatch.delenv(name, raising=False)

    @asynccontextmanager
    async def run(
        size: tuple[int, int] = (120, 40),
        *,
        config: Settings | None = None,
        color: str = "truecolor",
        **options: Any,
    ) -> AsyncIterator[Pilot[None]]:
        settings = replace(config or Settings(), export_folder=str(tmp_path))
        options = {"look_ahead": False, **options}  # an engine for each test takes its time
        app = QtuiApp(config=settings, color=color, **options)
        async with app.run_test(size=size, notifications=True) as pilot:
            await until(pilot, lambda: app.panel is not None)
            await settled(pilot)
            yield pilot

    return run
