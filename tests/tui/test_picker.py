"""The picker: what matches, what is shown of it, its keys, and what each panel lets pick."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any, cast

import pytest
from every import collected, every
from screens import Running, resized, screen_lines, screen_text, settled, until
from textual.pilot import Pilot

from qtui.screen.picker.matching import SORTED, Letters, folded
from qtui.screen.picker.paths import path_completions, recording_picking
from qtui.screen.picker.picking import PickerRow, Picking
from qtui.screen.picker.schemes import COMMON, format_picking, listed_schemes, scheme_picking
from qtui.screen.picker.screen import PickerScreen, pick
from qtui.tui.panels import PANELS
from qtui.tui.picking.model import model_picking
from qtui.tui.picking.place import place_picking, places
from qtui_core.errors import UsageError
from qtui_core.quant.storage import bits_per_parameter
from qtui_core.schemes.formats import SCHEME_FORMATS
from qtui_core.schemes.scheme import Scheme

LAYERS = [f"model.layers.{at}.{part}" for at in range(24) for part in ("q_proj", "mlp.down_proj")]
HOSTILE = "\x1b[2Jevil\nname\u202e.weight"
NAMES = [*LAYERS, HOSTILE, "wide.层.标准化.weight", "long." + "x" * 3000 + ".end"]


def found(text: str, names: list[str]) -> list[str]:
    low = list(map(folded, names))
    return [names[at] for at in Letters(text).among(low, range(len(names)))]


# Matching


def test_the_best_match_is_first() -> None:
    cases = (
        ("l3q", LAYERS, "model.layers.3.q_proj"),
        ("down 23", LAYERS, "model.layers.23.mlp.down_proj"),
        ("g64", ["int4:group64:asym", "int4:group64", "6 big 4"], "int4:group64"),
        ("int4", ["mxint4x", "int4:row", "int4"], "int4"),
        ("GPUS", ["4 Memory › GPUs", "1 Formats"], "4 Memory › GPUs"),
        ("h100", ["GH200", "A100 H 100", "H100 PCIe"], "H100 PCIe"),
    )

    def check(text: str, names: list[str], best: str) -> None:
        assert found(text, names)[0] == best

    every(cases, check)


def test_what_matches_is_what_has_the_letters_in_order() -> None:
    """Against a loop over the letters, for random names and texts, few and many."""

    def has(word: str, name: str) -> bool:
        letters = iter(name.lower())
        return all(letter in letters for letter in word.lower())

    rng = random.Random(7)
    for count in (40, SORTED * 3):
        names = ["".join(rng.choices("abAB1.[(é", k=rng.randrange(9))) for _ in range(count)]
        for _ in range(60):
            text = "".join(rng.choices("aB1.[ é", k=rng.randrange(1, 5)))
            wanted = [name for name in names if all(has(word, name) for word in text.split())]
            got = found(text, names)
            assert sorted(got) == sorted(wanted), text
            letters = Letters(text)
            for name in got:
                low, marks = folded(name), sorted(letters.marks(folded(name)))
                assert len(low) == len(name)
                assert all(has(word, "".join(low[at] for at in marks)) for word in letters.words)


def test_a_text_as_it_is_comes_before_its_letters_however_many_there_are() -> None:
    names = [f"a.b.{at}" for at in range(SORTED)] + [f"ab.{at}" for at in range(SORTED)]
    assert found("ab", names) == names[SORTED:] + names[:SORTED]
    assert found("", names) == names


# What there is to pick


def test_every_listed_scheme_says_the_bits_that_are_stored() -> None:
    picking = scheme_picking(Scheme.parse("int4:group64:asym"), None)
    assert picking.names[0] == "int4:group64:asym"
    assert set(listed_schemes()) <= set(picking.names)

    def check(at: int) -> None:
        scheme = Scheme.parse(picking.names[at])
        assert str(scheme) == picking.names[at]
        bits = f"{bits_per_parameter(scheme, COMMON):.4g} bits"
        assert picking.row(at).facts == bits
        assert bits in picking.row(at).note

    every([(at,) for at in range(len(picking.names))], check)
    # 86 groups of at most 48 in a row, each with a scale of 32 bits: 3 + 86 * 32 / 4096.
    assert picking.typed("int3:group48").facts == "3.672 bits"
    with pytest.raises(UsageError, match="Unknown format 'int9'"):
        picking.typed("int9")


def test_a_picked_format_is_the_scheme_that_the_line_says() -> None:
    for present in map(Scheme.parse, ("int4:group64:asym", "nf4:block64:dq", "bf16", "mxfp4")):
        picking = format_picking(present, (64, 128))
        assert picking.names == tuple(SCHEME_FORMATS)
        assert picking.names[picking.at] == present.format
        for at, name in enumerate(picking.names):
            said = re.search(r"becomes (\S+),", picking.row(at).note)
            assert said is not None
            assert Scheme.parse(said[1]).format == name
        assert f"becomes {present}," in picking.row(picking.at).note


def test_places_are_the_panels_and_views_that_there_are() -> None:
    for entry in PANELS:
        views = getattr(entry.load(), "VIEWS", ())
        assert entry.views == tuple(view.TITLE for view in views)
    picking = place_picking("memory", "GPUs")
    assert picking.names[picking.at] == "4 Memory › GPUs"
    assert len(picking.names) == len(places())
    assert "Key 4 shows Memory" in picking.row(picking.at).note


def test_paths_are_completed_from_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("models/b10", "models/b9", "models/.hidden"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("models/x.safetensors", "models/notes.txt"):
        (tmp_path / name).write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    completed = path_completions((".safetensors",))
    assert list(completed("mod")) == ["models/"]
    listed = [f"models/{name}" for name in ("b9/", "b10/", "x.safetensors")]
    assert list(completed("models/")) == listed
    assert list(completed("~/models/b1")) == ["~/models/b10/"]
    assert list(completed("models/.")) == ["models/.hidden/"]
    assert not completed("")
    assert not completed("models/none/")


def test_a_model_is_recent_a_path_or_of_the_hub(tmp_path: Path) -> None:
    picking = model_picking("demo", ("org/gpt2", str(tmp_path)))
    assert picking.names == ("demo", "org/gpt2", str(tmp_path))
    assert [picking.row(at).facts for at in range(3)] == ["open now", "recent", "recent"]
    assert picking.typed(str(tmp_path)).facts == "folder"
    assert picking.typed("org/name") == PickerRow("hub", picking.typed("org/name").note)
    assert picking.typed("gpt2").below  # what matches it comes first
    for wrong in ("/none/here", "a b", "./no"):
        with pytest.raises(UsageError, match="no hub id"):
            picking.typed(wrong)


def test_a_recording_that_is_gone_is_said(tmp_path: Path) -> None:
    picking = recording_picking([tmp_path / "gone.jsonl"])
    assert picking.row(0).note == "The file is gone."
    with pytest.raises(UsageError, match="there is no file"):
        picking.typed("nowhere.jsonl")


# The screen


async def opened(pilot: Pilot[None], picking: Picking) -> list[int | str]:
    """Opens the picker; the list gets what is picked."""
    app, answers = cast(Any, pilot.app), []
    await pick(app, app.drawing, picking, answers.append)
    await settled(pilot)
    return answers


def of_names(names: list[str] = NAMES, **more: Any) -> Picking:
    row = lambda at: PickerRow("4×4 BF16", f"The name {names[at]}.")  # noqa: E731
    return Picking("Tensor", names, row, "No tensor has these letters in this order.", **more)


async def test_keys_of_the_picker(running: Running) -> None:
    async with running(size=(80, 24)) as pilot:
        screen = lambda: cast(PickerScreen, pilot.app.screen)  # noqa: E731
        cases: tuple[tuple[list[str], int | None], ...] = (
            (["enter"], 5),
            ([*"l3q", "enter"], 6),
            ([*"l3q", "ctrl+u", "enter"], 5),
            (["down", "ctrl+n", "up", "enter"], 6),
            (["ctrl+p", "enter"], 4),
            (["pageup", "enter"], 0),
            (["end", *["pagedown"] * 9, "enter"], len(NAMES) - 1),
            ([*"q_", "down", "enter"], 2),
            ([*"l3q", "escape"], None),
        )
        for keys, wanted in cases:
            answers = await opened(pilot, of_names(at=5))
            await pilot.press(*keys)
            assert not isinstance(pilot.app.screen, PickerScreen), keys
            assert answers == ([] if wanted is None else [wanted]), keys
        answers = await opened(pilot, of_names())
        await pilot.press(*"zzz", "enter")
        await settled(pilot)
        assert "No tensor has these letters in this order." in screen_text(pilot.app)
        assert (answers, len(screen()._entries)) == ([], 0)
        await pilot.press("ctrl+u", *"l3q", "tab")  # the chosen name, to go on from
        assert screen().field.value == "model.layers.3.q_proj"
        await pilot.press("escape")
        answers = await opened(pilot, of_names(at=5))
        for _ in range(9):  # in one read: the field has them before the first closes its screen
            pilot.app.simulate_key("enter")
        await settled(pilot)
        assert answers == [5]
        answers = await opened(pilot, of_names())
        line = next(at for at, row in enumerate(screen_lines(pilot.app)) if "layers.4.q_" in row)
        await pilot.click(offset=(20, line))
        assert answers == [NAMES.index("model.layers.4.q_proj")]


async def test_the_picker_at_every_size_and_depth(running: Running) -> None:
    for color, ascii in (("truecolor", False), ("16", False), ("none", True)):
        async with running(size=(80, 24), color=color, ascii=ascii) as pilot:
            await opened(pilot, of_names(LAYERS))
            await pilot.press(*"l1dn")
            with collected() as case:
                sizes = ((80, 24), (60, 16), (120, 40), (200, 50), (40, 12))
                for size in sizes if color == "truecolor" else sizes[::4]:
                    with case(f"{color} {size}"):
                        await resized(pilot, size)
                        lines = screen_lines(pilot.app)
                        assert {len(line) for line in lines} == {size[0]}
                        assert ascii <= all(map(str.isascii, lines))
                        row = next(line for line in lines if "layers.1.mlp.down" in line)
                        assert size[0] < 60 or "BF16" in row
                        assert size[0] < 60 or any("The name model.layers.1." in x for x in lines)
            await resized(pilot, (80, 24))
            strip = cast(PickerScreen, pilot.app.screen).list.render_line(0)
            marked = [each.text for each in strip if each.style and each.style.bold]
            assert "".join(marked) == "l1dn", color
            if color != "truecolor":
                assert all(each.style.underline for each in strip if each.text in marked)


async def test_hostile_names_are_shown_safely(running: Running) -> None:
    async with running(size=(80, 24)) as pilot:
        for text in ("evil", "层", "xxend"):
            answers = await opened(pilot, of_names())
            cast(PickerScreen, pilot.app.screen).field.value = text
            await settled(pilot)
            lines = screen_lines(pilot.app)
            assert not any(character in "".join(lines) for character in "\x1b\n\u202e")
            await pilot.press("enter")
            assert len(answers) == 1
            assert all(letter in NAMES[int(answers[0])] for letter in text)


async def test_many_names_cost_what_is_on_the_screen(running: Running) -> None:
    asked: list[int] = []
    names = [f"layers.{at}.experts.{at % 256}.up_proj" for at in range(100_000)]

    def row(at: int) -> PickerRow:
        asked.append(at)
        return PickerRow("", "A row.")

    async with running(size=(120, 40)) as pilot:
        answers = await opened(pilot, Picking("Tensor", names, row, "None."))
        await pilot.press(*"l99999", "enter")
        assert answers == [99_999]
        assert len(asked) < 40 * 12


# The keys of the panels


async def test_each_key_opens_its_picker_where_the_thing_is(running: Running) -> None:
    everywhere = {"p": "Place", "ctrl+o": "Model"}
    keys = {
        "formats": {"f": "Format"},
        "memory": {"d": "Device", "o": "Worked case"},
        "train": {"d": "Device", "o": "Recording"},
        "numerics": {"o": "Recording"},
        "hardware": {"d": "Device"},
    }
    async with running(size=(120, 40)) as pilot:
        app = cast(Any, pilot.app)
        for entry in PANELS:
            if entry.id not in keys:
                continue  # they need a model: see test_quantize_panel_work
            await app.action_show_panel(entry.id)
            await settled(pilot)
            for key in ("t", "s", "f", "d", "o", "p", "ctrl+o"):
                wanted = {**everywhere, **keys[entry.id]}.get(key)
                await pilot.press(key)
                screen = pilot.app.screen
                title = screen.picking.title if isinstance(screen, PickerScreen) else None
                assert title == wanted, (entry.id, key)
                if title:
                    await pilot.press("escape")
                    assert not isinstance(pilot.app.screen, PickerScreen)


async def test_a_place_is_shown_and_letters_of_one_packet_arrive(running: Running) -> None:
    async with running(size=(120, 40)) as pilot:
        app = cast(Any, pilot.app)
        await pilot.press("p", *"roof", "enter")
        await until(pilot, lambda: app.panel.PANEL_ID == "hardware")
        await until(pilot, lambda: app.panel.view.TITLE == "Roofline")
        await pilot.press("1", "f", *"e5m2", "enter")
        assert app.panel.state.chosen.title == "E5M2"
