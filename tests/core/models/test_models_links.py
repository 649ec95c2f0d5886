"""Links in a model's folder: those to its own files and into a hub cache are followed."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from adapter_models import lora, write_adapter
from every import over
from local_models import A, save, write_index

from qtui_core.errors import ModelError
from qtui_core.models import open_model
from qtui_core.models.files.local import check_tokenizer_links
from qtui_core.models.opening import open_adapter

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
CACHE = "cache/models--org--x"
BLOB = "../cache/models--org--x/blobs/model.safetensors"

#: Links (name -> where it leads), what is opened, the link that is refused; empty if none is.
CASES: list[tuple[dict[str, str], str, str]] = [
    # To another folder: each kind of file.
    ({"here/model.safetensors": "../else/model.safetensors"}, "here", "model.safetensors"),
    ({"here/config.json": "../else/config.json"}, "here", "config.json"),
    ({f"here/{INDEX}": f"../else/{INDEX}"}, "here", INDEX),
    ({"shards/model.safetensors": "../else/model.safetensors"}, "shards", "model.safetensors"),
    ({"shards/model.safetensors": "/etc/passwd"}, "shards", "model.safetensors"),
    ({"shards/model.safetensors": "../gone"}, "shards", "model.safetensors"),
    ({"here/config.json": "../else/config.json"}, "here/own.safetensors", "config.json"),
    ({f"here/{FIRST}": "own", f"here/{SECOND}": f"../else/{SECOND}"}, f"here/{FIRST}", SECOND),
    ({f"here/{name}": f"../else/{name}" for name in ADAPTER}, "here", ADAPTER[1]),
    # A folder whose name begins as that of the model is another folder.
    ({"here/model.safetensors": "../here2/model.safetensors"}, "here", "model.safetensors"),
    # A link to a folder, and a chain whose last link leads out.
    ({"below/sub": "../else"}, "below", "model.safetensors"),
    ({"here/model.safetensors": "a", "here/a": "../else/model.safetensors"}, "here", "model."),
    # A file in a folder called blobs that is in no hub cache.
    ({"here/model.safetensors": "../blobs/model.safetensors"}, "here", "model.safetensors"),
    # Followed: into a hub cache, from its snapshot or from a folder; among the model's own files.
    ({f"{CACHE}/snapshots/c0/model.safetensors": "../../blobs/model.safetensors"},
     f"{CACHE}/snapshots/c0", ""),
    ({"here/model.safetensors": BLOB}, "here", ""),
    ({"here/model.safetensors": "own.safetensors"}, "here", ""),
    ({"here/model.safetensors": "sub/deep.safetensors"}, "here", ""),
    # The user's own choice: a folder or a file that is a link, and what lies beside the file.
    ({"link": "else"}, "link", ""),
    ({"link": f"{CACHE}/snapshots/c0", f"{CACHE}/snapshots/c0/model.safetensors":
      "../../blobs/model.safetensors"}, "link", ""),
    ({"here/x.safetensors": "../else/model.safetensors", "here/config.json": "../else/config.json"},
     "here/x.safetensors", ""),
    ({f"here/{FIRST}": f"../else/{FIRST}", f"here/{SECOND}": f"../else/{SECOND}"},
     f"here/{FIRST}", ""),
    ({f"here/{INDEX}": f"../else/{INDEX}", "here/model.safetensors": "../else/model.safetensors"},
     f"here/{INDEX}", ""),
    ({f"here/{name}": f"../else/{name}" for name in ADAPTER}, f"here/{ADAPTER[1]}", ""),
]  # fmt: skip


def lay_out(root: Path) -> None:
    """A folder with every kind of file, and the folders in which links are put."""
    other = root / "else"
    write_adapter(other, lora("q_proj", 6, 8))
    gguf = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
    for name in (other / FIRST, other / SECOND, root / "here/own"):
        name.parent.mkdir(exist_ok=True)
        name.write_bytes(gguf)
    for folder in ("else", "here2", "blobs", f"{CACHE}/blobs"):
        save(root / folder / "model.safetensors", a=A)
    save(root / "here/own.safetensors", a=A)
    save(root / "here/sub/deep.safetensors", a=A)
    (other / "config.json").write_text("{}")
    (root / CACHE / "snapshots/c0").mkdir(parents=True)
    for folder, file in (("else", ""), ("shards", ""), ("below", "sub/")):
        (root / folder).mkdir(exist_ok=True)
        write_index(root / folder, {"a": f"{file}model.safetensors"})


@over("links, opened, refused", CASES, ids=str)
def test_links_of_a_model(tmp_path, links, opened, refused):
    lay_out(tmp_path)
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    adapter = any(ADAPTER[0] in name for name in links)
    open_it: Callable[[str], object] = open_adapter if adapter else open_model
    if not refused:
        open_it(str(tmp_path / opened))
        return
    with pytest.raises(ModelError) as caught:
        open_it(str(tmp_path / opened))
    said = str(caught.value)
    last = next(name for name in reversed(links) if "." in name or name.endswith("sub"))
    assert refused in said
    assert "is a link to" in said
    assert os.path.realpath(tmp_path / last)[-20:] in said
    assert "put a copy of that file" in said


@over("name, target, refused", [
    ("tokenizer.json", "../else/config.json", True),
    ("merges.txt", "/etc/passwd", True),
    ("additional_chat_templates", "/etc", True),
    ("additional_chat_templates/a.jinja", "/etc/passwd", True),
    ("tokenizer.json", BLOB, False),
    ("README.md", "/etc/passwd", False),
])  # fmt: skip
def test_links_of_a_tokenizer(tmp_path, name, target, refused):
    lay_out(tmp_path)
    (tmp_path / "here" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "here" / name).symlink_to(target)
    if not refused:
        check_tokenizer_links(tmp_path / "here")
        return
    with pytest.raises(ModelError, match="is a link to"):
        check_tokenizer_links(tmp_path / "here")
