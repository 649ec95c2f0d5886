"""The left side of a panel: the list of the model's tensors, its filter, and their count."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from qtui.engine.answers.tensors import TensorEntry
from qtui.screen.tensors.list import TensorList, TensorOrder, rank_text, sqnr_key
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.field import Field

# Seconds between two updates of the count while tensors are measured: nobody reads more of them.
COUNT_SECONDS = 0.25


class TensorSide(Vertical):
    """The list of tensors, with the filter above it, and a line below that says what is listed."""

    DEFAULT_CSS = """
    TensorSide {
        width: 32;
        padding: 0 1 0 0;
        #tensor-filter { display: none; margin: 0 1; }
        &.-filtering #tensor-filter { display: block; }
        #tensor-count { height: 1; padding: 0 2; color: $quiet; }
    }
    """
    ORDER_WORDS: ClassVar[dict[TensorOrder, str]] = {
        TensorOrder.MODEL: "as in the model",
        TensorOrder.NAME: "by name",
        TensorOrder.WORST: "worst first",
    }

    def __init__(self, drawing: Drawing) -> None:
        super().__init__()
        self.field = Field(compact=True, placeholder="letters of a name", id="tensor-filter")
        self.list = TensorList(drawing)
        self.count = Static(id="tensor-count", markup=False)
        self._sqnr: dict[str, float | None] = {}
        self._notes: tuple[str, ...] = ()
        """Texts about the list, the longest first; without any, its order is named."""
        self._stepped_to = ""
        self._counted = 0.0
        self.ranked_by = ""
        """The scheme whose numbers are known for all tensors; empty before they are."""

    def compose(self) -> ComposeResult:
        yield self.field
        yield self.list
        yield self.count

    def load(self, tensors: tuple[TensorEntry, ...]) -> None:
        """Shows another model's tensors."""
        self.forget_ranks()
        self._notes = ()
        self.list.load(tensors)
        with self.field.prevent(Input.Changed):
            self.field.value = ""
        self.remove_class("-filtering")
        self._count()

    def _count(self) -> None:
        shown, all_ = len(self.list.shown), len(self.list.entries)
        many = f"{shown:,} of {all_:,}" if shown != all_ else f"{all_:,}"
        notes = self._notes or (self.ORDER_WORDS[self.list.order],)
        texts = (f"{many}, {notes[0]}", *notes) if all_ else ("",)
        width = self.count.content_size.width
        fitting = (text for text in texts if len(text) <= width)
        self.count.update(next(fitting, texts[-1]), layout=False)

    def on_resize(self) -> None:
        self._count()

    # Filtering

    @property
    def typing(self) -> bool:
        return self.field.takes_keys

    @property
    def filtering(self) -> bool:
        """Whether the list has the focus and shows only what a filter leaves."""
        return self.list.has_focus and bool(self.field.value)

    def start_filter(self) -> None:
        self.add_class("-filtering")
        self.screen.set_focus(self.field)  # focus() acts later, after keys of the same packet

    def drop_filter(self) -> None:
        """Shows all tensors again, with the cursor on the current one."""
        self._show_all()
        self.screen.set_focus(self.list)

    def _show_all(self) -> None:
        self.field.value = ""
        self.list.set_filter("")
        self._count()
        self.remove_class("-filtering")

    def choose(self, entry: TensorEntry) -> None:
        """Chooses a tensor; if the filter hides it, all are shown again."""
        if entry not in self.list.shown:
            self._show_all()
        self.list.select(entry.name)

    @on(Input.Changed)
    def _filter_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.list.set_filter(event.value)
        self._count()

    @on(Input.Submitted)
    def _filter_kept(self, event: Input.Submitted) -> None:
        event.stop()
        if self.list.open_current():  # otherwise nothing matches, and the user corrects the text
            self.set_class(bool(event.value), "-filtering")
            self.screen.set_focus(self.list)

    @on(Input.Blurred)
    def _filter_left(self, event: Input.Blurred) -> None:
        event.stop()
        self.list.open_current()  # the marked tensor becomes the current one

    # Ordering

    @property
    def ranks(self) -> Mapping[str, float | None]:
        """The SQNR in dB of the tensors that were measured for the list, by name."""
        return self._sqnr

    def next_order(self) -> TensorOrder:
        orders = list(TensorOrder)
        order = orders[(orders.index(self.list.order) + 1) % len(orders)]
        self._notes = ()
        self.list.set_order(order, self._sqnr)
        self._count()
        return order

    def forget_ranks(self) -> None:
        """Forgets the numbers of the list, as the scheme changed."""
        self._sqnr = {}
        self.ranked_by = ""

    def add_rank(self, name: str, sqnr_db: float | None) -> None:
        """Adds the number of one more tensor; the list is sorted again when all are known."""
        self._sqnr[name] = sqnr_db
        self._notes = (f"measured {len(self._sqnr):,}",)
        now = time.monotonic()
        if now - self._counted > COUNT_SECONDS:
            self._counted = now
            self._count()

    def ranks_stopped(self) -> None:
        """Drops the numbers of tensors that were measured: without the others they rank nothing."""
        self.forget_ranks()
        self._notes = ("not ranked: press w",) if self.list.order is TensorOrder.WORST else ()
        self._count()

    def ranks_done(self, scheme: str, *, sampled: bool) -> None:
        self.ranked_by = scheme
        self._notes = ()
        if self.list.order is TensorOrder.WORST:
            self._notes = ("worst first, sampled",) if sampled else ()
            self.list.set_order(TensorOrder.WORST, self._sqnr)
        self._count()

    def step_worst(self, direction: int) -> None:
        """Chooses the next (1) or previous (-1) tensor of the ranking, which begins with the
        worst."""
        listed = [entry.name for entry in self.list.shown if entry.name in self._sqnr]
        ranking = sorted(listed, key=lambda name: sqnr_key(self._sqnr[name]))
        if not ranking:
            return
        current = self.list.current
        at = ranking.index(current.name) if current and current.name in ranking else None
        if current is None or at is None or current.name != self._stepped_to:
            at = 0 if direction > 0 else len(ranking) - 1
        else:
            at = (at + direction) % len(ranking)
        self._stepped_to = name = ranking[at]
        self.list.select(name)
        decibels = rank_text(self._sqnr[name])
        place, of = f"worst {at + 1:,}", f" of {len(ranking):,}"
        self._notes = (f"{place}{of}: {decibels}", f"{place}: {decibels}")
        self._count()
