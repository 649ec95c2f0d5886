"""A panel that shows one tensor of a model, with a list of all tensors."""

from __future__ import annotations

from typing import Any

from textual import on
from textual.containers import Container

from qtui.screen.panel.asking import AskingPanel, AskingPhase
from qtui.screen.plan.history import History
from qtui.screen.tensors.list import TensorList
from qtui.screen.tensors.picking import tensor_picking
from qtui.screen.tensors.side import TensorSide
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.task_title import TaskTitle
from qtui.screen.widgets.view_tabs import ViewTabs


class TensorBody(Container):
    """Has the list of tensors, and a title for the current one. On a narrow screen the list
    replaces another part while the class `-listing` is set. A subclass arranges the parts."""

    def __init__(self, drawing: Drawing, tabs: ViewTabs) -> None:
        super().__init__()
        self.drawing = drawing
        self.tabs = tabs
        self.side = TensorSide(drawing)
        self.title_line = TaskTitle(drawing)

    @property
    def typing(self) -> bool:
        """Whether a text field has the focus."""
        return self.side.typing

    @property
    def listing(self) -> bool:
        """Whether the list of tensors replaces another part now."""
        return self.has_class("-listing") and self.has_class("-narrow")

    @property
    def can_leave(self) -> bool:
        """Whether Escape leaves a text field, a filter or the list."""
        return self.typing or self.listing or self.side.filtering

    def leave(self) -> None:
        """Leaves the text field or the filter, whose text is dropped, or else the list."""
        if self.side.typing or self.side.filtering:
            self.side.drop_filter()
        else:
            self.show_picture()

    def show_picture(self) -> None:
        """Shows the picture in place of the list."""
        self.remove_class("-listing")


class TensorPanel(AskingPanel):
    """A panel whose state `shown` has the current tensor in `entry`, and changes it in
    `choose`."""

    body: TensorBody
    shown: Any
    #: What `u` goes back to: the schemes, and what belongs to them.
    choice: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.history: History[Any] = History()

    def take_choice(self, choice: Any) -> None:
        """Shows what `choice` was at an earlier time."""

    def action_undo(self) -> None:
        self._go_to(self.history.undo(self.choice))

    def action_redo(self) -> None:
        self._go_to(self.history.redo(self.choice))

    def _go_to(self, choice: Any) -> None:
        if choice is not None:
            self.take_choice(choice)

    def look(self, *, pause: bool = False) -> None:
        """Reads the chosen tensor; with `pause` only if no other is chosen in PAUSE_SECONDS."""

    @on(TensorList.Highlighted)
    def _tensor_changed(self, message: TensorList.Highlighted) -> None:
        message.stop()
        self.forget_refusal()
        self.shown.choose(message.entry)
        self.look(pause=True)

    @on(TensorList.Chosen)
    def _tensor_chosen(self, message: TensorList.Chosen) -> None:
        message.stop()
        self.body.show_picture()
        if self.shown.entry is not message.entry:
            self.body.side.list.open_current()
        elif self.phase is AskingPhase.STOPPED:
            self.look()

    async def action_tensors(self) -> None:
        await self.pick(tensor_picking(self.body.side), self._tensor_picked)

    def _tensor_picked(self, picked: int | str) -> None:
        side = self.body.side
        entry = side.list.entries[int(picked)]
        side.choose(entry)
        if self.shown.entry is entry and self.phase is AskingPhase.STOPPED:
            self.look()

    def action_filter(self) -> None:
        self.body.add_class("-listing")
        self.body.side.start_filter()

    def action_back(self) -> None:
        self.forget_refusal()
        self.body.leave()

    def offers(self, action: str, parameters: tuple[object, ...]) -> bool:
        if action in ("filter", "schemes"):
            return not self.body.typing
        if action in ("undo", "redo"):
            return self.history.undoes if action == "undo" else self.history.redoes
        if action == "tensors":
            return bool(self.body.side.list.entries) and not self.body.typing
        if action == "back":
            return self.body.can_leave
        return super().offers(action, parameters)
