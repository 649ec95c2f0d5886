"""Every text of every input contains terminal escapes; none of them reaches a terminal raw. The
places are not listed here: they are found in real recordings, configurations and headers."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_hub import serve
from safetensors.numpy import save
from terminals import program

from qtui.report.train.document import train_document
from qtui.tui.app import QtuiApp
from qtui.tui.config import load_config
from qtui_core.errors import QtuiError
from qtui_core.formats.magnitudes import Magnitudes
from qtui_core.live.snapshot import Fault, LogMessage, State, StepRanges, TensorRange
from qtui_core.live.state import KINDS, RunState, after, from_line, parse_recording, to_line
from qtui_core.memory.devices.profile import MeasuredStep, Profile, profile_of
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.models import open_model

#: Renames the window and clears the screen (also in C1 codes), changes the writing direction, hides
#: a mark, moves the cursor, rings the bell, and ends a line. The words make it easy to find.
OBEYED = (
    "\x1b]0;EVIL\x07\x1b[2;31337J\x9b2;31337J\u202eEVIL\u2066\u200bEVIL\rEVIL\x08EVIL\x7f"
    "EVIL\nEVIL[/b]"
)
#: The same as bytes on a terminal. A Textual screen ends its own lines with a plain newline.
RAW = re.compile(
    rb"\x1b\]0;EVIL|\x1b\[2;31337J|\xc2[\x80-\x9f]|\xe2\x80[\x8b-\x8f\xaa-\xae]"
    rb"|\xe2\x81[\xa0-\xaf]|EVIL\r+(?!\n)EVIL|EVIL\x08|EVIL\x07|EVIL\x7f|EVIL\r*\nEVIL\[/b"
)

Shape = tuple[str, ...]


def poison(text: str) -> str:
    """The text followed by all of these control characters."""
    return text + OBEYED


def shapes(value: Any, at: Shape = ()) -> Iterator[Shape]:
    """The places of texts in a JSON document; all items of a list are one place. A key is a place
    too, as it may be a name that is shown."""
    if isinstance(value, str):
        yield at
    elif isinstance(value, dict):
        for key, item in value.items():
            yield (*at, key, "as a key")
            yield from shapes(item, (*at, key))
    elif isinstance(value, list):
        for item in value:
            yield from shapes(item, (*at, "*"))


def poisoned(value: Any, places: frozenset[Shape], at: Shape = ()) -> Any:
    """The document with poison at these places. A key is not replaced: a similar one is added."""
    if isinstance(value, str):
        return poison(value) if at in places else value
    if isinstance(value, list):
        return [poisoned(item, places, (*at, "*")) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: poisoned(item, places, (*at, key)) for key, item in value.items()}
    keys = [key for key in value if (*at, key, "as a key") in places]
    return found | {poison(key): found[key] for key in keys}


def hostile(document: Any, accepts: Callable[[Any], bool]) -> tuple[Any, list[Any]]:
    """(the document with poison in all places that `accepts` allows, a document for each place that
    it does not)."""
    taken: frozenset[Shape] = frozenset()
    refused: list[Any] = []

    def take(places: list[Shape]) -> None:
        nonlocal taken
        if accepts(poisoned(document, taken.union(places))):
            taken = taken.union(places)
        elif len(places) == 1:
            refused.append(poisoned(document, frozenset(places)))
        else:
            take(places[: len(places) // 2])
            take(places[len(places) // 2 :])

    take(list(dict.fromkeys(shapes(document))))
    return poisoned(document, taken), refused


def raw(written: bytes) -> list[str]:
    """The parts of the poison that reached a terminal unchanged, with their surroundings."""
    return [
        written[max(0, found.start() - 60) : found.end() + 20].decode(errors="backslashreplace")
        for found in RAW.finditer(written)
    ]


pytestmark = [pytest.mark.pty, pytest.mark.slow]

TESTS = Path(__file__).parents[1]
FACES = ("text", "markdown", "html", "json")
#: Runs commands one after another, as if each were a process: [arguments, environment].
COMMANDS = """
import json, os, sys
from qtui.cli import main
for arguments, environment in json.load(open(sys.argv[1])):
    os.environ.update(environment)
    sys.argv = ["qtui", *arguments]
    try:
        main()
    except SystemExit:
        pass
    for name in environment:
        del os.environ[name]
"""
PROFILE = Profile(
    made="2026-11-21T10:00:00+00:00", device="RTX 4090", driver="580.1", capability=(8, 9),
    total_memory=24 << 30, versions={"qtui": "0", "torch": "2.13.0"}, context_first=280 << 20,
    context_products=410 << 20, context_basis="this process", workspace_forward=32 << 20,
    workspace_training=64 << 20, segments={"1024": 2 << 20}, allocator={"a": "b"},
    steps=(MeasuredStep("lora", "lora", 1.0, 1 << 30, 1 << 30, 1 << 30, 1 << 30),),
)  # fmt: skip


def taken(read: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """Whether `read` accepts a document."""

    def accepts(document: Any) -> bool:
        try:
            return read(document) is not False
        except QtuiError:
            return False

    return accepts


def recordings(folder: Path) -> tuple[Path, list[Path]]:
    """A recording of every kind of line with escapes in every text, and those that are refused."""
    real = (TESTS / "live/recordings/demo_qlora_cpu.jsonl").read_text().splitlines()
    fault = Fault(9.0, 6, "backward", "out of memory", "It did not fit.", False, 1,
                  (("weights", 1),), (("--batch 1", 1),))  # fmt: skip
    found = Magnitudes((*[0] * 100, 5, *[0] * 155), 1, 2.0**-27)
    ranges = (TensorRange("output gradients", "layer", found),)
    other = (LogMessage(9.0, "said"), fault, State(9.0, "running"), StepRanges(9.0, 6, 1.0, ranges))
    more = list(map(to_line, other))
    lines = [json.loads(line) for line in (*real[:-1], *more, real[-1])]
    assert {line["told"] for line in lines} == set(KINDS)

    def read(lines: list[Any]) -> Any:
        found = parse_recording(map(json.dumps, lines))
        train_document(reduce(after, found, RunState()), "")
        return not found.complaint

    whole, refused = hostile(lines, taken(read))
    paths = [folder / f"recording{at}.jsonl" for at in range(len(refused) + 1)]
    for path, found in zip(paths, (whole, *refused), strict=True):
        path.write_text("".join(json.dumps(line) + "\n" for line in found))
    # And one whose texts are not valid Unicode.
    said = LogMessage(9.0, "surrogate \ud83d here \udc9b")
    with paths[0].open("a") as file:
        file.write(to_line(said) + "\n")
    assert from_line(to_line(said)) == said
    return paths[0], paths[1:]


def weights(names: list[str]) -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {name: random.normal(0, 0.02, (96, 128)).astype(np.float32) for name in names}


def safetensors(folder: Path) -> list[Path]:
    """Files with escapes in every text of their headers; the first one opens."""
    names = [f"layers.{at}.up.weight" for at in range(6)]
    body = save(weights(names), {"format": "pt", "made by": "a tool"})
    (length,) = struct.unpack("<Q", body[:8])
    header = json.loads(body[8 : 8 + length])
    header = {(poison(n) if n in names else n): entry for n, entry in header.items()}
    path = folder / "try.safetensors"

    def write(path: Path, document: Any) -> None:
        text = json.dumps(document).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + body[8 + length :])

    def read(document: Any) -> Any:
        write(path, document)
        with open_model(path) as found:
            return sum(info.readable for info in found.tensors.values()) >= 3

    whole, refused = hostile(header, taken(read))
    path.unlink()
    paths = [folder / f"weights{at}.safetensors" for at in range(len(refused) + 1)]
    for path, found in zip(paths, (whole, *refused), strict=True):
        write(path, found)
    return paths


def model(folder: Path, weights: Path) -> tuple[Path, list[Path]]:
    """A folder with weights and a config with poison in every text, and those refused."""
    config = json.loads((TESTS / "memory/configs/mistral-7b-v0.1.json").read_text())
    config |= {
        "num_hidden_layers": 2,
        "quantization_config": {"quant_method": "made up", "format": "so", "modules": ["a"]},
        "rope_scaling": {"rope_type": "default"},
    }

    def read(document: Any) -> Any:
        return shape_from_config(document)

    read(config)
    whole, refused = hostile(config, taken(read))
    folders = [folder / f"model{at}" for at in range(len(refused) + 1)]
    for path, found in zip(folders, (whole, *refused), strict=True):
        path.mkdir()
        (path / "config.json").write_text(json.dumps(found))
    (folders[0] / "model.safetensors").write_bytes(weights.read_bytes())
    return folders[0], folders[1:]


def sharded(folder: Path) -> Path:
    """A folder whose index names files that do not exist."""
    folder.mkdir()
    index = {"weight_map": {poison("a"): poison("b"), "c": poison("d")}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


def gguf(path: Path) -> Path:
    """A GGUF file with poison in its names and metadata."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, poison("llama"))
    for key in ("general.name", "general.license", "tokenizer.ggml.model"):
        writer.add_string(key, poison("text"))
    writer.add_string(poison("own.key"), "text")
    for name, array in weights(["blk.0.ffn_up.weight", "blk.0.ffn_down.weight"]).items():
        writer.add_tensor(poison(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def configurations(folder: Path) -> tuple[Path, list[Path]]:
    """The app's own configuration, with escapes where they are accepted, and where they are
    refused."""
    config: dict[str, Any] = {
        "theme": "qtui-dark", "color": "256", "start_panel": "formats", "export_folder": "out",
        "keys": {"app.quit": "q"},
    }  # fmt: skip

    def write(path: Path, document: Any) -> None:
        keys = "".join(f"{text(k)} = {text(v)}\n" for k, v in document["keys"].items())
        lines = (f"{text(k)} = {text(v)}\n" for k, v in document.items() if k != "keys")
        path.write_text("".join(lines) + "[keys]\n" + keys)

    def text(value: Any) -> str:
        return json.dumps(value).replace("\x7f", "\\u007f")

    path = folder / "config.toml"

    def read(document: Any) -> Any:
        write(path, document)
        return QtuiApp(config=load_config({"QTUI_CONFIG": str(path)}))

    whole, refused = hostile(config, taken(read))
    write(path, whole)
    refused = [found for found in refused if isinstance(found.get("keys"), dict)]
    paths = [folder / f"config{at}.toml" for at in range(len(refused))]
    for at, found in zip(paths, refused, strict=True):
        write(at, found)
    return path, paths


def profiles(folder: Path) -> list[tuple[list[str], dict[str, str]]]:
    """Commands that read profiles with escapes; one profile is accepted, others are refused."""

    def read(document: Any) -> Any:
        try:
            return profile_of(json.dumps(document))
        except QtuiError:
            return False

    whole, refused = hostile(json.loads(PROFILE.to_json()), read)
    commands = []
    for at, found in enumerate((whole, *refused)):
        home = folder / f"data{at}"
        path = home / "qtui/profiles/rtx-4090.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(found))
        arguments = ["memory", "demo", "--gpu", "RTX 4090"]
        commands.append((arguments, {"XDG_DATA_HOME": str(home)}))
    return commands


def test_no_command_sends_raw_text_to_the_terminal(tmp_path: Path) -> None:
    played, others = recordings(tmp_path)
    files = safetensors(tmp_path)
    folder, folders = model(tmp_path, files[0])
    _, configs = configurations(tmp_path)
    words = OBEYED.replace("\n", " ")
    commands: list[tuple[list[str], dict[str, str]]] = [
        *((["replay", str(played), "--format", face], {}) for face in FACES),
        *((["replay", str(path), "--format", "text"], {}) for path in others),
        *((["inspect", str(folder), "--format", face], {}) for face in FACES),
        *((["memory", str(folder), "--format", face, "--explain"], {}) for face in FACES),
        *((["memory", str(path)], {}) for path in folders),
        *((["inspect", str(path), "--headers"], {}) for path in files),
        (["inspect", str(files[0]), "--against", str(files[0]), "--color", "none"], {}),
        (["inspect", str(files[0]), "--full", "--schemes", "nf4", "--ascii"], {}),
        (["inspect", str(folder), "--sensitivity"], {}),
        (["inspect", str(folder), "--tensors", words], {}),
        (["inspect", str(sharded(tmp_path / "sharded"))], {}),
        (["inspect", str(gguf(tmp_path / "m.gguf"))], {}),
        (["memory", str(tmp_path / "m.gguf")], {}),
        (["memory", str(folder), "--trace"], {}),
        (["train", str(folder), "--steps", "1", "--device", "cpu"], {}),
        *((["demo"], {"QTUI_CONFIG": str(path)}) for path in configs),
        *profiles(tmp_path),
        *(([*command, words], {}) for command in (
            ["inspect"], ["memory"], ["train"], ["replay"], ["formats"], ["nothing"],
            ["memory", "demo", "--gpu"], ["inspect", "demo", "--schemes"],
            ["memory", "demo", "--method"], ["inspect", "demo", "-o"], ["inspect", "demo", words],
            ["memory", "demo", "--debug", "--max"], ["train", "demo", "--debug", "--data"],
        )),
    ]  # fmt: skip
    with serve() as hub:
        hub.repos["org/evil"] = {
            "config.json": (folder / "config.json").read_bytes(),
            "model.safetensors": files[0].read_bytes(),
            poison("extra.safetensors"): b"",
        }
        hub.repos["org/none"] = {poison("README.md"): b"", "config.json": b"{}"}
        reached = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")}
        commands += [(["inspect", "org/evil"], {}), (["inspect", "org/none"], {})]
        commands += [(["memory", "org/evil"], {}), (["memory", f"org/evil@{words}"], {})]
        listed = tmp_path / "commands.json"
        listed.write_text(json.dumps(commands))
        arguments = ("-c", COMMANDS, str(listed))
        with program(tmp_path, *arguments, size=(120, 40), **reached) as terminal:
            assert terminal.exit_code(100) == 0
    assert terminal.written.count(b"EVIL") > 5 * len(commands)
    assert raw(terminal.written) == []


QUIT = "\x11"
#: In the upper edge of the palette.
PALETTE = " Command ("


def walk_through(terminal: Any, panels: str, views: int) -> None:
    """Each panel and each of its views, with its help; a copy and an export of each panel."""
    for panel in panels:
        terminal.send(panel)
        terminal.settle(0.25)
        for keys in (*"v" * views, "??", "y"):
            terminal.send(keys)
            terminal.settle(0.15)
        terminal.send("e")
        terminal.wait_for("Wrote")
        terminal.send("\x10EVIL")
        terminal.wait_for(PALETTE)
        terminal.settle(0.15)
        terminal.send("\x1b")  # which would be Alt with a key that comes at once
        terminal.wait_for_no(PALETTE)


def exported(folder: Path) -> str:
    """The escapes that are raw in files that the app wrote."""
    return "".join(found for path in folder.glob("qtui-*") for found in raw(path.read_bytes()))


def test_the_app_sends_no_raw_text_of_a_recording(tmp_path: Path) -> None:
    played, _ = recordings(tmp_path)
    size = (120, 40)
    with program(tmp_path, "-m", "qtui", "replay", str(played), size=size) as terminal:
        terminal.wait_for("EVIL")
        terminal.send("....]]]]]]]]")
        terminal.settle()
        walk_through(terminal, "5", views=8)
        terminal.send(QUIT)
        assert terminal.exit_code() == 0
    assert raw(terminal.written) == []
    assert list(tmp_path.glob("qtui-train*.svg"))
    assert exported(tmp_path) == ""
    assert b"Traceback" not in terminal.written


def test_the_app_sends_no_raw_text_of_a_model(tmp_path: Path) -> None:
    files = safetensors(tmp_path)
    folder, _ = model(tmp_path, files[0])
    config, _ = configurations(tmp_path)
    out = load_config({"QTUI_CONFIG": str(config)}).export_folder
    (tmp_path / out).mkdir(parents=True)
    arguments = ("-m", "qtui", str(folder))
    settings = {"QTUI_CONFIG": str(config), "NO_COLOR": "1"}
    with program(tmp_path, *arguments, size=(120, 40), **settings) as terminal:
        terminal.send("2")
        terminal.wait_for("EVIL")
        walk_through(terminal, "234571", views=3)
        typed = "".join(c for c in OBEYED if c > "\x7f" or c.isprintable())
        terminal.send(f"\x0f{typed}\r")
        terminal.settle()
        terminal.send(QUIT)
        assert terminal.exit_code() == 0
    assert raw(terminal.written) == []
    assert list((tmp_path / out).glob("qtui-*.json"))
    assert exported(tmp_path / out) == ""


def test_poison_is_put_everywhere() -> None:
    document = {"a": ["x", {"b": "y"}], "c": 1}
    places = set(shapes(document))
    assert places == {("a", "as a key"), ("a", "*"), ("a", "*", "b", "as a key"), ("a", "*", "b"),
                      ("c", "as a key")}  # fmt: skip
    whole, refused = hostile(document, lambda found: found["a"][0] == "x")
    assert refused == [{"a": [poison("x"), {"b": "y"}], "c": 1}]
    assert whole["a"][1]["b"] == poison("y")
    assert raw(poison("x").encode()) != []
