"""One grammar of keys: each key means one thing in every panel, view and dialog.

TABLE says what; every binding is held against it, and docs/keys.md is made of it (UPDATE_GOLDEN=1).
A new binding takes the key whose meaning it has, and its id goes into that row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from textual.binding import Binding

from qtui.screen.picker.screen import PickerScreen
from qtui.tui import screens
from qtui.tui.keymap import APP_BINDINGS, SCREEN_BINDINGS, own_bindings
from qtui.tui.leaving import LeaveScreen
from qtui.tui.panels import PANELS

PAGE = Path(__file__).parents[2] / "docs/keys.md"

#: Title -> rows of: the keys, what they mean, and the ids of their bindings (`*`: anything).
TABLE: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Everywhere": (
        (
            "1 2 3 4 5 6 7",
            "Formats, Quantize, Codebooks, Memory, Train, Numerics, Hardware",
            "app.panel_*",
        ),
        ("v", "the next view of the panel", "*.view"),
        ("V", "the view before", "*.view_back"),
        ("tab", "the next part of the panel", "app.focus_next"),
        ("shift+tab", "the part before", "app.focus_previous"),
        ("up k", "one line up in what has the cursor", "*.up *.row_up *.scheme_up"),
        ("down j", "one line down", "*.down *.row_down *.scheme_down"),
        (
            "left h",
            "one place left, or the value before",
            "*.left *.bit_left *.less choice.previous",
        ),
        (
            "right l",
            "one place right, or the next value",
            "*.right *.bit_right *.more choice.next",
        ),
        (
            "shift+up K shift+down J shift+left H shift+right L",
            "far in a map",
            "heatmap.far_*",
        ),
        ("g", "the first line of what has the cursor", "*.first *.first_* heatmap.top"),
        ("G", "its last line", "*.last *.last_* heatmap.bottom"),
        ("home", "as g; in a grid, the start of the line", "*.first *.first_* *.line_start"),
        ("end", "as G; in a grid, the end of the line", "*.last *.last_* *.line_end"),
        ("pageup", "one page up", "*.page_up"),
        ("pagedown", "one page down", "*.page_down"),
        (
            "enter",
            "what the footer says: open, type, take, close",
            "*.enter *.choose choice.next help.close",
        ),
        (
            "escape",
            "one step back: out of a field, a list, a picture, a dialog, a zoom; stops what runs",
            "*.back *.stop *.leave app.unzoom help.close leave.stay",
        ),
        ("slash", "filter the list", "*.filter"),
        ("z", "fill the screen with the main picture, and back", "app.maximise app.unzoom"),
        ("y", "copy what the panel shows as text", "app.copy"),
        ("Y", "copy the command that gives what is shown", "app.copy_command"),
        ("ctrl+z", "suspend qtui; `fg` in the shell brings it back", "app.suspend"),
        ("e", "export picture, data and tables", "app.export"),
        ("question_mark f1", "help, with every key that works now", "app.help help.close"),
        ("ctrl+p", "search every command", "app.palette"),
        ("ctrl+o", "pick another model: a recent one, a path, a hub id", "app.open_model"),
        ("p", "pick another place: a panel and its view", "app.place"),
        ("ctrl+l", "draw the whole screen again", "app.redraw"),
        ("q", "leave; close what is over the panel", "app.quit help.close leave.leave"),
        ("ctrl+q", "leave, from anywhere", "app.quit_now"),
        (
            "ctrl+c super+c",
            "copy the text selected with the mouse, or say which key leaves",
            "app.copy_selection app.interrupt",
        ),
    ),
    "Work": (
        (
            "r",
            "run, start, draw, trace or measure; again after a stop or a failure",
            "*.run *.restart *.draw *.measure *.trace *.capture *.evaluate *.read_layers",
        ),
        ("c", "go on with what was stopped", "*.go_on"),
        (
            "space",
            "pause or resume; flip a bit; the next value of a setting",
            "*.pause *.flip choice.next",
        ),
        (
            "x",
            "stop, remove or close",
            "*.stop *.remove *.own *.remove_scheme *.take_out *.clear_injection",
        ),
        ("u", "undo the last change", "*.undo"),
        ("U", "make it again", "*.redo"),
        ("backspace", "the usual value", "*.usual"),
        ("o", "pick a recording or a worked case, and open it", "*.open *.case"),
        (
            "i",
            "type what goes in: a number, an outlier, a text file",
            "*.edit *.inject *.evaluated_text *.text_file *.data",
        ),
        ("I", "type a text", "*.prompt *.text"),
        (
            "colon",
            "type a number: steps, a step to jump to",
            "*.jump *.steps",
        ),
        (
            "plus",
            "more: the next number or value, zoom in, a larger outlier, more windows",
            "*.next *.up_value *.zoom_in *.larger_outlier *.more_windows",
        ),
        (
            "minus",
            "less",
            "*.previous *.down_value *.zoom_out *.smaller_outlier *.fewer_windows",
        ),
        (
            "full_stop",
            "more of what the picture is drawn with: a limit, speed, zoom, scale",
            "*.higher_limit *.faster *.zoom_in *.scale_up",
        ),
        ("comma", "less of it", "*.lower_limit *.slower *.zoom_out *.scale_down"),
        ("asterisk", "go to the largest magnitude", "heatmap.peak"),
        ("0", "the whole tensor", "quantize.zoom_all"),
        (
            "m",
            "the next picture, map, layer or way to detect",
            "*.picture *.map *.layer *.detection *.frontier",
        ),
        ("M", "the one before", "*.picture_back *.map_back *.layer_back *.detection_back"),
        (
            "S",
            "what is drawn: weight, input or output; numbers or scales; with the loss scale",
            "*.source *.scales *.loss_scale",
        ),
        ("F", "where the axis begins, and whether it is logarithmic", "*.floor *.counts"),
        ("Z", "how the elements of a cell are pooled", "*.pooling"),
        (
            "b",
            "another beside: B beside A, a run behind, schemes to compare",
            "*.side_by_side *.behind *.add_schemes",
        ),
        ("P", "keep this format beside the others", "*.pin"),
    ),
    "Tensors, schemes and devices": (
        ("t", "pick a tensor", "*.tensors"),
        ("T", "the order of the tensors", "*.order"),
        ("w", "the next worst tensor", "*.worst"),
        ("W", "the one before", "*.worst_back"),
        ("s", "pick a scheme, or type it", "*.type"),
        ("X", "work on the other scheme, A or B", "*.swap"),
        ("f", "pick a format", "*.format"),
        (
            "right_parenthesis",
            "the next granularity: which elements share a scale",
            "*.granularity",
        ),
        ("left_parenthesis", "the granularity before", "*.granularity_back"),
        (
            "right_square_bracket",
            "larger blocks or groups; the next step of a run",
            "*.larger *.step *.next_step",
        ),
        ("left_square_bracket", "smaller ones; the step before", "*.smaller *.previous_step"),
        (
            "right_curly_bracket",
            "double quantization: more scales share a constant",
            "*.nested *.nested_larger",
        ),
        ("left_curly_bracket", "fewer do", "*.nested_back *.nested_smaller"),
        ("a", "a zero point, or none", "*.symmetry"),
        ("A", "the kind of zero point", "*.zero_point"),
        (
            "C",
            "what clips: the scale rule, and what values that are too large become",
            "*.rule *.saturation",
        ),
        ("R", "rounding", "*.rounding"),
        ("D", "double quantization", "*.double_quantization"),
        ("O", "outlier columns in 16 bits", "*.outliers"),
        ("greater_than_sign", "LLM.int8(): a lower threshold", "*.lower_threshold"),
        ("less_than_sign", "LLM.int8(): a higher threshold", "*.higher_threshold"),
        ("equals_sign", "equal bits per parameter", "*.equal_bits"),
        ("d", "pick a GPU; of an evaluation, take the CPU or a GPU", "*.gpu *.evaluation_device"),
        ("B", "the largest batch that fits", "*.largest"),
    ),
}
ROWS = [row for rows in TABLE.values() for row in rows]
DIALOGS = (screens.HelpScreen, PickerScreen, LeaveScreen)

#: Names of keys as they are written, where they are no character.
NAMES = {
    "question_mark": "?", "slash": "/", "plus": "+", "minus": "-", "asterisk": "*", "colon": ":",
    "comma": ",", "full_stop": ".", "left_square_bracket": "[", "right_square_bracket": "]",
    "left_curly_bracket": "{", "right_curly_bracket": "}", "left_parenthesis": "(",
    "right_parenthesis": ")", "greater_than_sign": ">", "less_than_sign": "<", "equals_sign": "=",
    "pageup": "PgUp", "pagedown": "PgDn", "escape": "Esc",
}  # fmt: skip


def bindings() -> Iterator[tuple[str, str]]:
    """Every key that is bound, with the id of the action."""
    declared = list(Binding.make_bindings([*APP_BINDINGS, *SCREEN_BINDINGS]))
    for entry in PANELS:
        panel = entry.load()
        for owner in (panel, *panel.KEYED_WIDGETS):
            declared += own_bindings(owner)
    for dialog in DIALOGS:
        declared += own_bindings(dialog)
    for binding in declared:
        assert binding.id, binding
        yield binding.key, binding.id


def test_each_binding_has_the_meaning_of_its_key() -> None:
    meanings = {key: (meaning, ids.split()) for keys, meaning, ids in ROWS for key in keys.split()}
    wrong = []
    for key, binding in bindings():
        meaning, ids = meanings.get(key, ("nothing", []))
        if not any(fnmatch(binding, pattern) for pattern in ids):
            wrong.append(f"{key} is {binding}, but means {meaning!r}")
    assert not wrong, "Another key, or a row of TABLE: " + "; ".join(wrong)


def test_a_key_is_in_one_row_and_no_row_is_idle() -> None:
    keys = [key for row in ROWS for key in row[0].split()]
    assert len(keys) == len(set(keys))
    bound = list(bindings())
    for names, _, ids in ROWS:
        for key in names.split():
            assert any(each == key for each, _ in bound), f"nothing is bound to {key}"
        for pattern in ids.split():
            here = (id for key, id in bound if key in names.split())
            assert any(fnmatch(id, pattern) for id in here), f"{pattern} is not on {names}"


def test_the_page_of_keys_is_that_table() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "UPDATE_GOLDEN=1 writes docs/keys.md anew"


def page() -> str:
    lines = [
        "# Keys",
        "",
        "A key means one thing in every panel and view; where it has no meaning, it does nothing.",
        "The last line of the screen shows keys that work now; `?` there lists all of them, with",
        "the ids by which `config.toml` gives an action another key:",
        "",
        "```toml",
        "[keys]",
        '"quantize.worst" = "f5"',
        "```",
        "",
        "Keys that pick open a list with a field. Letters of a name in their order find it:",
        "`l3q` is `layers.3.q_proj`; words come in any order. `Up`, `Down`, `Ctrl+P`, `Ctrl+N`,",
        "`PgUp` and `PgDn` move, `Enter` or a click takes the row, `Tab` completes a path or takes",
        "the row's text into the field, `Esc` leaves everything as it was.",
    ]
    for title, rows in TABLE.items():
        lines += ["", f"## {title}", "", "| Key | Meaning |", "|---|---|"]
        for keys, meaning, _ in rows:
            lines.append(f"| {' '.join(f'`{_name(key)}`' for key in keys.split())} | {meaning} |")
    return "\n".join(lines) + "\n"


def _name(key: str) -> str:
    *modifiers, last = key.split("+")
    plain = last.capitalize() if len(last) > 1 else last.upper() if modifiers else last
    return "+".join([*(each.capitalize() for each in modifiers), NAMES.get(last, plain)])
