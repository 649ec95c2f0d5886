"""A view: one way to look at what a panel knows."""

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
    """One tab of a panel: what it draws of what is shown (`ShownT`), and what that means.

    To add one, write a subclass in a file `*_view.py` of the panel's room, with TITLE, HELP, `draw`
    and `meaning`, and name it in the `VIEWS` of the panel, at the place of its tab. `AskingPanel`
    makes one object of each (`views`), says which is on the screen (`view`), and changes that
    (`show_view`). The panel itself has to

    - make its keys with `view_keys(PANEL_ID, VIEWS)` and its help with `views_help(VIEWS)`,
    - lay out its `tabs` in the body,
    - draw the view when something is new, in `draw`:
      `self.body.picture.show(partial(self.view.draw, self.shown))`; then `self.speak()`,
    - say what it means, in `meaning`: `self.view.meaning(self.shown)`.
    """

    TITLE: ClassVar[str]
    HELP: ClassVar[str] = ""
    """Markdown, a part of the help of the panel."""

    KEYS: ClassVar[tuple[Binding, ...]] = ()
    """Bindings of actions of this view. They work wherever the focus of the panel is, while the
    view is shown; their ids start with the PANEL_ID."""

    CURSOR: ClassVar[bool] = False
    """Whether it has lines or cells to choose from."""

    def __init__(self, panel: AskingPanel) -> None:
        self.panel = panel

    def opened(self) -> None:
        """The view has been turned to: ask for what only it shows; it is drawn after this."""

    def draw(self, shown: ShownT, canvas: Canvas) -> Sequence[TextLine]:
        """Lines of text for the room there is. One with widgets of its own draws by these."""
        return ()

    def meaning(self, shown: ShownT) -> str:
        """The sentence below it: what it means right now, and what to do."""
        return ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether an action of KEYS can be done now."""
        return True


def view_keys(panel_id: str, views: Sequence[type[View[Any]]]) -> list[Binding]:
    """The keys from view to view, and those of the views as keys of the panel, whose
    `action_in_view` runs them."""
    # "GPUs" stays as it is.
    titles = (view.TITLE if view.TITLE[1].isupper() else view.TITLE.lower() for view in views)
    told = f"Next view: {', '.join(titles)}"
    return [
        panel_binding(panel_id, "v", "view(1)", "View", "view", told, show=True),
        panel_binding(panel_id, "V", "view(-1)", "View back", "view_back", "View before"),
        *(
            replace(key, action=f"in_view({view.TITLE!r}, {key.action!r})")
            for view in views
            for key in view.KEYS
        ),
    ]


def views_help(views: Sequence[type[View[Any]]]) -> str:
    """What the help of a panel says of its views."""
    return "".join(view.HELP for view in views)
