"""The Formats panel with its keys and its mouse: each changes the value as it should."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from every import collected, in_parts, left_out
from hypothesis import given
from hypothesis import strategies as st
from screens import Running, screen_text, settled, until
from textual.events import Key, Paste
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input

from qtui.screen.messages import SendValue
from qtui.screen.widgets.bits import BitGrid
from qtui.screen.widgets.choice import Choice
from qtui.screen.widgets.field import LONGEST
from qtui.screen.widgets.number_line import NumberLine
from qtui.screen.widgets.text_picture import TextPicture
from qtui.tui.panels.formats import state as verbs
from qtui.tui.panels.formats.panel import FormatsPanel
from qtui.tui.panels.formats.state import FORMAT_LIST, FormatsState, initial_state
from qtui_core.errors import UsageError
from qtui_core.formats import E4M3, E4M3FNUZ, FORMATS, FP16, FP32, FP64, INT8, Rounding, decode
from qtui_core.formats.text import parse_value


def panel_of(pilot: Pilot[None]) -> FormatsPanel:
    return pilot.app.query_one(FormatsPanel)


async def type_value(pilot: Pilot[None], text: str) -> None:
    await pilot.press("i")
    pilot.app.query_one("#formats-value", Input).value = text
    await pilot.press("enter")
    await settled(pilot)


async def choose(pilot: Pilot[None], title: str) -> None:
    panel = panel_of(pilot)
    want = [fmt.title for fmt in FORMAT_LIST].index(title)
    panel.action_move_row(want - panel.grid.chosen)
    await settled(pilot)


# Toggling


async def test_a_toggled_bit_of_fp32_changes_the_value_as_struct_says(running: Running) -> None:
    (word,) = struct.unpack(">I", struct.pack(">f", 0.1))
    async with running() as pilot:
        panel = panel_of(pilot)
        await choose(pilot, "FP32")
        with collected() as case:
            for bit in (0, 1, 8, 9, 31):
                with case(bit):
                    panel.show_value(parse_value("0.1"), "here")
                    await pilot.press("home")
                    panel.action_move_bit(bit)
                    await pilot.press("space")
                    (expected,) = struct.unpack(">f", struct.pack(">I", word ^ (1 << (31 - bit))))
                    assert float(panel.state.value) == expected
                    assert panel.state.source is FP32
                    assert panel.state.origin == "bits of FP32"


@given(st.floats(), st.integers(0, 63))
def test_toggling_any_bit_of_any_double_is_what_struct_says(value: float, bit: int) -> None:
    (word,) = struct.unpack(">Q", struct.pack(">d", value))
    state = verbs.with_code(initial_state(), FP64, word, "here")
    flipped = word ^ (1 << (63 - bit))
    toggled = verbs.with_bit_toggled(state, FP64, bit)
    assert toggled.code == flipped
    (expected,) = struct.unpack(">d", struct.pack(">Q", flipped))
    assert float(toggled.value) == expected or (
        math.isnan(float(toggled.value)) and math.isnan(expected)
    )
    assert verbs.with_bit_toggled(toggled, FP64, bit).code == word


async def test_toggling_twice_by_enter_and_space_comes_back(running: Running) -> None:
    async with running() as pilot:
        await pilot.press("right", "right", "space")
        panel = panel_of(pilot)
        assert panel.chosen_row.code == 0x1D ^ 0x20
        await pilot.press("space")
        assert panel.chosen_row.code == 0x1D


async def test_a_click_toggles_the_bit_under_it_and_chooses_its_format(running: Running) -> None:
    async with running() as pilot:
        grid = pilot.app.query_one(BitGrid)
        lines = screen_text(pilot.app).splitlines()
        row = next(i for i, line in enumerate(lines) if line.startswith("  BF16"))
        column = lines[row].index("m 1001101") + 2
        await pilot.click(BitGrid, offset=(column - grid.region.x, row - grid.region.y))
        await settled(pilot)
        state = panel_of(pilot).state
        assert state.chosen.name == "bf16"
        # 0.1 in BF16 is 0x3dcd; the highest mantissa bit is 0x40.
        assert state.code == 0x3DCD ^ 0x40
        assert "BF16*" in screen_text(pilot.app)


async def test_a_click_on_a_name_only_chooses(running: Running) -> None:
    async with running() as pilot:
        before = panel_of(pilot).state.value
        await pilot.click(BitGrid, offset=(4, 5))
        await settled(pilot)
        assert panel_of(pilot).state.chosen is FP16
        assert panel_of(pilot).state.value == before


def test_every_code_of_e4m3_is_reached_by_its_bits_and_kept() -> None:
    for code in range(256):
        state = verbs.with_code(initial_state(), E4M3, code, "here")
        assert state.row(E4M3).code == code  # both NaNs and both zeros too
        for bit in range(8):
            assert verbs.with_bit_toggled(state, E4M3, bit).code == code ^ (0x80 >> bit)


def test_bits_can_be_toggled_where_the_format_has_no_code_for_the_value() -> None:
    state = verbs.with_value(initial_state(), math.nan, "here")
    assert state.row(INT8).code is None
    toggled = verbs.with_bit_toggled(state, INT8, 7)
    assert toggled.value == 1


# Typing


async def test_typed_text_sets_the_value(running: Running) -> None:
    async with running() as pilot:
        panel = panel_of(pilot)
        with collected() as case:
            for text, value, code in (
                ("1.5", Fraction(3, 2), 0x3C),
                ("-1/3", Fraction(-1, 3), 0xAB),
                ("0x7e", Fraction(448), 0x7E),
                ("0b0 0111 000", Fraction(1), 0x38),
                ("1e6", Fraction(10**6), 0x7E),
                ("fp16:0x3c00", Fraction(1), 0x38),
            ):
                with case(text):
                    await type_value(pilot, text)
                    assert panel.state.value == value
                    assert panel.state.row(E4M3).code == code
                    assert pilot.app.focused is panel.grid


async def test_a_burst_of_keys_after_i_is_typed_and_not_taken_for_keys(running: Running) -> None:
    async with running() as pilot:
        for key in ("i", "0", "x", "7", "e", "enter"):  # as one read from a slow line delivers it
            pilot.app.post_message(Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: panel_of(pilot).state.value == 448)
        assert pilot.app.panel is panel_of(pilot)


async def test_leaving_the_field_by_tab_keeps_the_value(running: Running) -> None:
    async with running() as pilot:
        await pilot.press("i", "5", "tab")
        await settled(pilot)
        assert panel_of(pilot).state.value == Fraction(1, 10)
        assert pilot.app.query_one("#formats-value", Input).value == "0.1"


async def test_pasted_text_sets_the_value(running: Running) -> None:
    async with running() as pilot:
        pilot.app.post_message(Paste("0x7e\n"))
        await until(pilot, lambda: panel_of(pilot).state.value == 448)


async def test_megabytes_pasted_into_a_field_are_cut_and_refused(running: Running) -> None:
    async with running() as pilot:
        await pilot.press("i")
        for text in ("9" * 3_000_000, "8" * 3_000_000):
            pilot.app.post_message(Paste(text))
        await settled(pilot)
        assert pilot.app.query_one("#formats-value", Input).value == "9" * LONGEST
        await pilot.press("enter")
        assert "at most 2000 are read" in " ".join(screen_text(pilot.app).split())


async def test_text_that_is_no_number_is_explained_and_kept(running: Running) -> None:
    async with running() as pilot:
        await type_value(pilot, "0.1x")
        assert "'0.1x' is not a number" in " ".join(screen_text(pilot.app).split())
        field = pilot.app.query_one("#formats-value", Input)
        assert field.value == "0.1x"
        assert field.has_focus
        await pilot.press("escape")
        await settled(pilot)
        assert field.value == "0.1"
        assert "E4M3 makes 0.10156 of 0.1" in screen_text(pilot.app)


# A pinned format


async def test_a_pinned_format_stays_beside_the_one_under_the_cursor(running: Running) -> None:
    async with running(size=(120, 40)) as pilot:
        panel = panel_of(pilot)
        assert panel.sentence.startswith("E4M3 makes 0.10156 of 0.1, off by 1.6%")
        await pilot.press("P")
        assert panel.sentence.endswith("Choose another format to compare it with this pinned one.")
        await choose(pilot, "E3M2")
        text = screen_text(pilot.app)
        assert "P E4M3" in text
        for parts in (("bits", "0 000 10", "0 0011 101"), ("relative", "+25%", "+1.56%"),
                      ("below", "0.0625", "0.09375"), ("largest", "28", "448")):  # fmt: skip
            assert any(all(part in line for part in parts) for line in text.splitlines()), parts
        assert panel.sentence.startswith("E4M3 comes 16 times closer to 0.1 than E3M2")
        ruler = panel.query_one(NumberLine).ruler
        assert ruler.tracks[1].name == "E4M3"
        # E4M3 makes 13/128 of it, E3M2 1/8; a step of E3M2 is 1/16.
        assert ruler.pinned_at < ruler.tracks[0].at
        line = next(line for line in text.splitlines() if line.strip().startswith("E3M2  "))
        mark = next(line for line in screen_text(pilot.app).splitlines() if "\u25c6" in line)
        assert mark == line
        assert mark.index("P") < mark.index("\u25c6")
        await choose(pilot, "E4M3")
        await pilot.press("P")
        assert panel.state.pinned is None
        assert ruler is not panel.query_one(NumberLine).ruler
        assert panel.query_one(NumberLine).ruler.pinned_at is None


@given(st.sampled_from(FORMAT_LIST), st.data())
def test_the_field_shows_text_that_reads_back_as_the_same_value(fmt, data) -> None:
    code = data.draw(st.integers(0, fmt.code_count - 1))
    state = verbs.with_code(initial_state(), fmt, code, "here")
    again = verbs.with_text(state, verbs.value_text(state.value))
    assert again.value == state.value or (
        math.isnan(float(again.value)) and math.isnan(float(state.value))
    )


def test_typed_nonsense_raises_a_usage_error() -> None:
    with pytest.raises(UsageError):
        verbs.with_text(initial_state(), "0xfff")  # more than the 8 bits of E4M3


# Stepping


@pytest.mark.parametrize("fmt", [E4M3, E4M3FNUZ, FORMATS["e2m1"], INT8], ids=lambda f: f.name)
def test_steps_walk_every_value_once_in_order(fmt) -> None:
    values = {float(decode(fmt, code).value) for code in range(fmt.code_count)}
    expected = sorted(v for v in values if not math.isnan(v))
    state = verbs.with_value(initial_state(), fmt.min, "here")
    state = verbs.with_chosen(state, fmt)
    seen = [float(state.value)]
    while (following := verbs.stepped(state, up=True)) is not None:
        state = following
        seen.append(float(state.value))
    assert seen == expected
    back = [seen[-1]]
    while (following := verbs.stepped(state, up=False)) is not None:
        state = following
        back.append(float(state.value))
    assert back == expected[::-1]


def test_a_step_from_between_two_numbers_goes_to_the_nearest_on_that_side() -> None:
    state = initial_state()  # 0.1 lies between 0.09375 and 0.1015625
    assert verbs.stepped(state, up=True).value == Fraction(13, 128)
    assert verbs.stepped(state, up=False).value == Fraction(12, 128)


async def test_the_end_of_the_range_is_said(running: Running) -> None:
    async with running() as pilot:
        await type_value(pilot, "448")
        await pilot.press("plus")
        await until(pilot, lambda: "E4M3 has no number above" in screen_text(pilot.app))


# Settings


async def test_rounding_by_key_and_click(running: Running) -> None:
    async with running() as pilot:
        choice = pilot.app.query_one("#formats-rounding", Choice)
        await pilot.press("R")
        await settled(pilot)
        assert choice.value == "nearest-away"
        await pilot.click("#formats-rounding")
        await settled(pilot)
        assert panel_of(pilot).state.rounding is Rounding.TOWARD_ZERO
        assert panel_of(pilot).chosen_row.value == Fraction(12, 128)


async def test_saturation_decides_what_too_large_becomes(running: Running) -> None:
    async with running() as pilot:
        await type_value(pilot, "70000")
        await choose(pilot, "FP16")
        panel = panel_of(pilot)
        assert panel.chosen_row.value == math.inf
        await pilot.press("C")
        await settled(pilot)
        assert panel.chosen_row.value == 65504
        await pilot.press("C")
        await settled(pilot)
        assert panel.chosen_row.value == math.inf
        assert math.isnan(float(panel.state.row(E4M3).value))


def test_stochastic_rounding_takes_both_neighbours_in_the_right_proportion() -> None:
    state = verbs.with_rounding(initial_state(), Rounding.STOCHASTIC)
    count = 4000
    ups = 0
    for _ in range(count):
        state = verbs.with_new_draw(state)
        value = state.row(E4M3).value
        assert value in (Fraction(12, 128), Fraction(13, 128))
        ups += value == Fraction(13, 128)
    chance = float((Fraction(1, 10) - Fraction(12, 128)) * 128)
    assert abs(ups / count - chance) < 5 * math.sqrt(chance * (1 - chance) / count)


async def test_draw_is_offered_only_for_stochastic_rounding(running: Running) -> None:
    async with running() as pilot:
        before = panel_of(pilot).state
        await pilot.press("r")
        assert panel_of(pilot).state == before
        while panel_of(pilot).state.rounding is not Rounding.STOCHASTIC:
            await pilot.press("R")
            await settled(pilot)
        before = panel_of(pilot).state
        await pilot.press("r")
        assert panel_of(pilot).state.random_bits != before.random_bits


# What is shown


async def test_details_of_the_chosen_format(running: Running) -> None:
    async with running() as pilot:
        text = " ".join(screen_text(pilot.app).split())
        for part in (
            "E4M3 0x1d normal",
            "0011 3 - 7 = -4",
            "1.101 = 1.625",
            "13/128",
            "+0.0015625 (+1.56%)",
            "0.0078125 = 2^-7",
            "below 0.09375",
            "above 0.109375",
            "(0.09765625, 0.10546875)",
            "max 448",
            "min normal 0.015625 = 2^-6",
            "subnormal 0.001953125 = 2^-9",
            "NaN, no infinity",
        ):
            assert part in text, part


@in_parts(3)
async def test_unusual_values_are_drawn_in_every_format(running: Running, parts: int) -> None:
    def fills(widget: Widget) -> None:
        for y in range(widget.size.height):
            assert widget.render_line(y).cell_length == widget.size.width

    async with running() as pilot:
        panel = panel_of(pilot)
        await choose(pilot, "FP64")
        await pilot.press("P")
        texts = ("nan", "inf", "-inf", "-0", "0", "1e-60", "1e400", "-3")
        for text in texts:
            panel.show_value(parse_value(text), "here")
            panel.action_move_row(-len(FORMAT_LIST))
            fills(panel.grid)  # which has all formats on it, and marks the one that is chosen
            for row, fmt in enumerate(FORMAT_LIST):
                panel.action_move_row(int(row > 0))
                if not left_out(parts, (text, texts), (fmt, FORMAT_LIST)):
                    fills(panel.query_one(TextPicture))
                    fills(panel.query_one(NumberLine))
            fills(panel.grid)
            assert panel.sentence
            await settled(pilot)
        await pilot.press("v", "comma", "plus", "minus")
        await settled(pilot)


async def test_a_value_sent_by_another_panel_is_shown_with_its_origin(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        value = Fraction(float(np.float32(0.7)))
        pilot.app.post_message(SendValue(value, "down_proj at (3, 17)"))
        await until(pilot, lambda: "from down_proj at (3, 17)" in screen_text(pilot.app))
        assert pilot.app.panel.PANEL_ID == "formats"
        assert panel_of(pilot).state.value == value
        assert panel_of(pilot).state.row(FP32).error == 0


async def test_landmarks_of_the_chosen_format_are_in_the_palette(running: Running) -> None:
    async with running() as pilot:
        panel = panel_of(pilot)
        entries = {entry.title: entry for entry in panel.palette()}
        entries["value: Set to the smallest subnormal of E4M3"].run()
        await settled(pilot)
        assert panel.state.value == Fraction(1, 512)
        entries["value: Set to the one step past the largest of E4M3"].run()
        await settled(pilot)
        assert panel.state.value == 480


async def test_the_bit_cursor_stays_inside_every_format(running: Running) -> None:
    async with running(size=(80, 24)) as pilot:
        panel = panel_of(pilot)
        await pilot.press("up", "k", "j", "down", "h", "l", "left", "right")
        panel.action_move_row(-30)
        await pilot.press("end")
        assert panel.state.chosen is FP64
        assert panel.grid.bit == 63
        await settled(pilot)
        panel.action_move_row(30)
        await settled(pilot)
        assert panel.state.chosen is FORMAT_LIST[-1]
        assert panel.grid.bit < panel.state.chosen.bits


def test_state_is_plain_data() -> None:
    assert FormatsState(Fraction(1), "x") == FormatsState(Fraction(1), "x")
