"""The base of views: each is one way to show the data of a panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from textual.binding import Binding

from qtui.screen.panel.hooks import ShellHooks
from qtui.screen.panel.keys import panel_binding
from qtui.screen.widgets.text_picture import Canvas, TextLine

if TYPE_CHECKING:
    from qtui.screen.panel.asking import AskingPanel

ShownT = TypeVar("ShownT")


class View(ShellHooks, Generic[ShownT]):
    """One tab of a panel: it draws the panel's state (`ShownT`), and says what the picture means.

    To add one, write a subclass in a file `*_view.py` of the panel's folder, with TITLE, HELP,
    `draw` and `meaning`, and add it to `VIEWS` of the panel, in the order of the tabs.
    `AskingPanel` makes an object of each class (`views`), keeps the current one (`view`), and
    changes it (`show_view`). The panel itself has to

    - make its keys with `view_keys(PANEL_ID, VIEWS)` and its help with `views_help(VIEWS)`,
    - lay out its `tabs` in the body,
    - draw the view whenever its data changes, in `draw`:
      `self.body.picture.show(partial(self.view.draw, self.shown))`; then `self.speak()`,
    - return the view's sentence in `meaning`: `self.view.meaning(self.shown)`.
    """

    TITLE: ClassVar[str]
    HELP: ClassVar[str] = ""
    """Markdown, a part of the panel's help."""

    KEYS: ClassVar[tuple[Binding, ...]] = ()
    """Bindings of this view's actions. While the view is shown they work wherever the focus is;
    their ids start with PANEL_ID."""

    CURSOR: ClassVar[bool] = False
    """Whether the view has lines or cells to choose from."""

    def __init__(self, panel: AskingPanel) -> None:
        self.panel = panel

    def opened(self) -> None:
        """Called when the view comes to the screen, before `draw`: requests what only it shows."""

    def draw(self, shown: ShownT, canvas: Canvas) -> Sequence[TextLine]:
        """Returns lines of text that fit the canvas. A view with its own widgets returns none."""
        return ()

    def meaning(self, shown: ShownT) -> str:
        """Returns the sentence below the view: what it means now, and what to do."""
        return ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether an action of KEYS is possible now."""
        return True


def view_keys(panel_id: str, views: Sequence[type[View[Any]]]) -> list[Binding]:
    """The keys that change the view, and the views' own keys as keys of the panel, whose
    `action_in_view` runs them."""
    # "GPUs" keeps its capitals.
    titles = (view.TITLE if view.TITLE[1].isupper() else view.TITLE.lower() for view in views)
    tooltip = f"Next view: {', '.join(titles)}"
    return [
        panel_binding(panel_id, "v", "view(1)", "View", "view", tooltip, show=True),
        panel_binding(panel_id, "V", "view(-1)", "View back", "view_back", "Previous view"),
        *(
            replace(key, action=f"in_view({view.TITLE!r}, {key.action!r})")
            for view in views
            for key in view.KEYS
        ),
    ]


def views_help(views: Sequence[type[View[Any]]]) -> str:
    """The part of a panel's help that describes its views."""
    return "".join(view.HELP for view in views)
