"""Hostile inputs end in an answer or in an error of the product: those that once did not, and new
ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from every import every
from mutations import fault_of, fuzz
from targets import TARGETS

from qtui.tui.config import load_config
from qtui_core.errors import UsageError

_RECORDING = TARGETS["recording"].seeds()[-1]


def _asked(method: str, tensor: str, *changed: bytes) -> bytes:
    """A request for an operation, with something replaced."""
    words = f'"{method}"'.encode(), f'"tensor": "{tensor}"'.encode()
    found = (seed for seed in TARGETS["operation"].seeds() if all(word in seed for word in words))
    return next(found).replace(*changed) if changed else next(found)


def _changed(target: str, *pairs: tuple[bytes, bytes]) -> bytes:
    """The first seed that has all of the texts, with others in place of these."""
    seeds = TARGETS[target].seeds()
    found = next(seed for seed in seeds if all(before in seed for before, _ in pairs))
    for before, after in pairs:
        found = found.replace(before, after)
    return found


_DIGITS = b"9" * 5000
#: Inputs that were no answer and no error of the product, or were feared to be: the target, and the
#: input.
CORPUS = (
    ("toml", b"ascii = " + b"[" * 3000),
    ("toml", b"threads = " + b"9" * 5000),
    ("toml", b"theme" + b".a" * 5000 + b" = 1"),
    ("toml", b"threads = 0x" + b"f" * 5000),
    ("keys", b"\x1b[:08u"),
    ("keys", b"\x1b[9999999999u"),
    ("keys", b"\x1b[" + b"9" * 5000 + b"u"),
    ("recording", b"[" * 100_000),
    ("recording", b'{"told":"header","schema_version":1' + b"0" * 400 + b"}"),
    ("recording", _RECORDING.replace(b'"tokens":256', b'"tokens":' + b"9" * 400)),
    ("operation", b'{"id":[],"method":{}}\n'),
    ("event", b'{"event":{},"id":[],"data":[]}\n'),
    (
        "event",
        b'{"event":"result","id":7,"data":0.5,"arrays":'
        b'[{"name":"a","dtype":"<f4","shape":[1],"nbytes":4}]}\n0000',
    ),
    ("operation", _asked("decomposition", "odd")),
    ("operation", _asked("attribution", "half", b'"tries": 3', b'"tries": -' + b"9" * 400)),
    ("operation", b'{"id":1,"method":"model_index","params":{"model":"\\ud800/a"}}'),
    ("operation", _asked("histogram", "one", b'"bins": 9', b'"bins": -9')),
    ("operation", _asked("histogram", "one", b'"bins": 9', b'"bins": ' + b"9" * 400)),
    ("operation", _changed("operation", (b'"capture"', b'"capture"'), (b"One day ", b"\\ud800"))),
    ("operation", _asked("bit_budget", "one", b'"shape": [3', b'"shape": [' + b"9" * 400)),
    ("evaluation", _changed("evaluation", (b'"batches":[2,2]', b'"batches":[]'))),
    ("evaluation", _changed("evaluation", (b'"scored":3', b'"scored":0'))),
    ("evaluation", _changed("evaluation", (b'"loss":"AAAA', b'"loss":"AAA'))),
    ("evaluation", _changed("evaluation", (b'"divergence":"AAAAAArX', b'"divergence":"AACAvwrX'))),
    ("experiment", _changed("experiment", (b'"counts":[[10,', b'"counts":[[-10,'))),
    ("experiment", _changed("experiment", (b'"floor":0.001', b'"floor":1e308'))),
    ("experiment", _changed("experiment", (b'"shift":0.0', b'"shift":"Infinity"'))),
    ("experiment", _changed("experiment", (b'"rows":["int8 row",', b'"rows":["a","b",'))),
    ("experiment", _changed("experiment", (b'"scale_axes":[{', b'"scale_axes":[null],"x":[{'))),
    ("experiment", _changed("experiment", (b"[[0.005,0.008],", b"[[0.005,0.008,0.1],"))),
    ("experiment", _changed("experiment", (b'"size":4194304', b'"size":"Infinity"'))),
    ("profile", b"[" * 100_000),
    ("profile", _changed("profile", (b'"context": 268435456', b'"context": ' + b"9" * 400))),
    ("profile", _changed("profile", (b": 67108864", b": " + b"9" * 400))),
    ("baseline", _changed("baseline", (b'"bytes": 500', b'"bytes": -Infinity'))),
    ("assignment", b'{"sensitivity": {"assignment": [{"tensor": []}]}}'),
    ("estimate", _changed("estimate", (b"-:.*o_proj", b"-:([a-z_.0-9]+)+,"))),
    ("estimate", _changed("estimate", (b"-:.*o_proj", b"-:a{99999999999}"))),
    ("packed", _changed("packed", (b'"bits": 3', b'"bits": 3'), (b"[6, 32]", b"[0, 32]"))),
    ("packed", _changed("packed", (b"re:.*_proj$", b"re:((((.+)+)+)+)+,$"))),
    ("packed", _changed("packed", (b"re:.*_proj$", b"re:a{99999999999}"))),
    ("packed", _changed("packed", (b"[8, 8]}}}", b"[8, 2147483648]}}}"))),
    ("packed", _changed("packed", (b'"nested_offset": 0.25', b'"nested_offset": ' + b"9" * 400))),
    (
        "packed",
        _changed(
            "packed",
            (b'["F8_E4M3", [8, 64]]', b'["F8_E4M3", [64, 64]]'),
            (b'["F32", [1, 1]]', b'["F32", [64, 1]]'),
        ),
    ),
    (
        "packed",
        _changed(
            "packed",
            (b"[128, 128]", b"[1" + b"0" * 400 + b", 1]"),
            (b'["F8_E4M3", [8, 64]]', b'["F8_E4M3", [2, 8, 64]]'),
            (b'["F32", [1, 1]]', b'["F32", [2, 1, 64]]'),
        ),
    ),
    ("packed", _changed("packed", (b'["I8", [8, 64]]', b'["' + b"a" * 5000 + b'", [8, 64]]'))),
    ("packed", _changed("packed", (b'"num_bits": 4', b'"num_bits": "' + b"a" * 5000 + b'"'))),
    ("packed", _changed("packed", (b'["I64", [2], [8, 64]]', b'["I64", [8, 64]]'))),
    ("estimate", _changed("estimate", (b'["LlamaForCausalLM', b'["LlamaForCausalLM' + _DIGITS))),
    ("checkpoint", _changed("checkpoint", (b"layers.0.v", b"layers." + _DIGITS + b".v"))),
    ("plan", b'{"loss": "000000000001' + _DIGITS + b'"}'),
)


def check(name: str, raw: bytes) -> None:
    error = fault_of(TARGETS[name], raw)
    assert error is None, f"{type(error).__name__} at {raw[:200]!r}: {error}"


@pytest.mark.slow
def test_what_escaped_once_does_so_no_more():
    every(CORPUS, check)


def test_the_inputs_that_are_changed_are_valid():
    every(TARGETS, lambda target: target.take(target.seeds()[0]))


def test_a_configuration_that_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="does not exist"):
        load_config({"QTUI_CONFIG": "a" * 5000})
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(UsageError, match="not a regular file"):
            load_config({"QTUI_CONFIG": str(path)})


#: Files of a model, which anybody may have made.
FILES = ("safetensors", "index", "gguf", "checkpoint", "packed")


@pytest.mark.parametrize(
    ("names", "seconds"),
    [(FILES, 0.1), pytest.param(list(TARGETS), 0.5, marks=pytest.mark.slow)],
    ids=["files", "all"],
)
def test_new_inputs_end_in_an_answer_or_an_error(names, seconds):
    # The same inputs each time: new ones are for runs by hand, which somebody looks at.
    def taken(name: str) -> None:
        tried, escapes = fuzz(TARGETS[name], seconds, 77)
        assert tried
        assert escapes == {}

    every(names, taken)
