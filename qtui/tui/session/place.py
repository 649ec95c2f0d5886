"""Where the user is in the app: put into the state, and found again in a panel."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from qtui.screen.panel.base import Panel
from qtui.screen.plan.history import Choice
from qtui.tui.session.last import LastSession
from qtui.tui.state import AppState

if TYPE_CHECKING:
    from qtui.tui.app import QtuiApp

#: Between two looks whether where the user is has changed, and is to be kept.
LOOK_SECONDS = 5.0


def go_on(session: LastSession, app: QtuiApp) -> None:
    """Says what went wrong with the last session, and keeps this one from now on."""
    if session.remark:
        app.tell(session.remark)
    app.set_interval(LOOK_SECONDS, partial(keep_place, session, app))


def greet(session: LastSession, app: QtuiApp, headline: str) -> None:
    """Tells who never used the app one line about the model that is open, once."""
    if session.first:
        from qtui.tui.session.hint import first_hint

        session.first = False
        app.tell(first_hint(headline, app.config.keys))


def keep_place(session: LastSession, app: QtuiApp) -> None:
    """Keeps where the user is, if it changed."""
    if app.drawn:
        session.state = _with_place(session.state, app, app.__dict__.get("chosen"))
        session.keep()


def _with_place(state: AppState, app: QtuiApp, chosen: Choice | None) -> AppState:
    panels = app.shell.panels
    shown = {panel.PANEL_ID: panel.view_title for panel in panels if panel.view_title}
    now = next((panel.PANEL_ID for panel in panels if panel.display), state.panel)
    state = replace(state, panel=now, views={**state.views, **shown})
    if chosen is None:
        return state
    from qtui_core.memory.plan.options import options_of

    plan, gpu = chosen
    options = {each.name: getattr(plan, each.name) for each in options_of(type(plan))
               if getattr(plan, each.name) != each.default}  # fmt: skip
    return replace(state, plan=options, gpu=None if gpu is None else dict(gpu.params))


def show_last_view(panel: Panel, state: AppState) -> None:
    """Shows the view of a new panel that was shown last, if there is one of that title."""
    title = state.views.get(panel.PANEL_ID)
    if title is None:
        return
    from qtui.screen.panel.asking import AskingPanel  # the first picture need not wait for it

    if not isinstance(panel, AskingPanel):
        return
    view = next((each for each in panel.views if title == each.TITLE), panel.view)
    if view is not panel.view:
        panel.show_view(view)


def chosen_before(state: AppState) -> Choice | None:
    """The plan and the GPU of the state; None if none was chosen, or if they are none today."""
    if not state.plan and state.gpu is None:
        return None
    from qtui.screen.plan.shown import GpuChoice
    from qtui_core.codec import from_plain
    from qtui_core.errors import QtuiError
    from qtui_core.memory.plan.options import RunPlan, options_of

    try:
        plan = from_plain(RunPlan, dict(state.plan))
        values = {each.name: each.normal(getattr(plan, each.name)) for each in options_of(RunPlan)}
        for option in options_of(RunPlan):
            option.check(values[option.name])
        gpu = None if state.gpu is None else GpuChoice.of_params(state.gpu)
    except QtuiError:
        return None
    return replace(plan, **values), gpu
