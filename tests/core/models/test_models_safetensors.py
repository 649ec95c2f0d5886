"""The header reader, compared with the safetensors library, also on files that contradict
themselves."""

from __future__ import annotations

import itertools
import json
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from every import drawn, over
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local_models import refused
from safetensors import SafetensorError, deserialize

from qtui_core.errors import ModelError
from qtui_core.models import open_model, rows_of
from qtui_core.models.files.safetensors import MAX_HEADER
from qtui_core.models.tensors import DTYPE_BITS, READABLE_DTYPES

A = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'


def one(dtype: object, shape: object, offsets: object, **more: object) -> dict:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}


def b(count: int, begin: int) -> dict:
    """A second tensor."""
    offsets = [begin, begin + 4 * count]
    return {"b": {"dtype": "F32", "shape": [count], "data_offsets": offsets}}


def library_reads(path: Path) -> dict[str, tuple[str, list[int], bytes]] | None:
    """What safetensors itself reads from a file; None if it refuses the file."""
    try:
        tensors = deserialize(path.read_bytes())
    except SafetensorError:
        return None
    return {n: (t["dtype"], list(t["shape"]), bytes(t["data"])) for n, t in tensors}


def qtui_reads(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    with open_model(path) as source:
        return {
            n: (t.dtype, list(t.shape), bytes(source.read_rows(n, 0, rows_of(t))))
            for n, t in source.tensors.items()
            if t.readable
        }


dtypes = st.sampled_from(sorted(DTYPE_BITS))
shapes = st.lists(st.integers(0, 5), max_size=4)
names = st.text(st.characters(codec="utf-8"), min_size=0, max_size=12).filter(
    lambda n: n != "__metadata__"
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(names, st.tuples(dtypes, shapes), max_size=6),
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5), st.text(max_size=5), max_size=2
    ),
    st.integers(0, 9),
    st.randoms(use_true_random=False),
)
def test_agrees_with_the_library_on_files_it_accepts(tmp_path, tensors, metadata, padding, random):
    try:
        json.dumps([tensors, metadata], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    header: dict = {"__metadata__": metadata} if metadata else {}
    position = 0
    for name, (dtype, shape) in tensors.items():
        size = int(np.prod(shape, dtype=object)) * DTYPE_BITS[dtype]
        if size % 8:
            shape, size = [8, *shape], size * 8
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [position, position + size // 8],
        }
        position += size // 8
    raw = json.dumps(header, ensure_ascii=random.random() < 0.5).encode() + b" " * padding
    path = tmp_path / "made.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + random.randbytes(position))

    expected = library_reads(path)
    found = qtui_reads(path)
    assert found == {n: t for n, t in expected.items() if t[0] in READABLE_DTYPES}
    with open_model(path) as source:
        listing = {n: (t.dtype, list(t.shape), t.nbytes) for n, t in source.tensors.items()}
        assert listing == {n: (t[0], t[1], len(t[2])) for n, t in expected.items()}
        assert source.metadata == metadata


@drawn(
    400,
    4,
    st.lists(st.tuples(st.integers(0, len(A) + 11), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, len(A) + 40),
)
def test_damage_that_is_accepted_is_accepted_by_the_library_too(tmp_path, flips, length):
    content = bytearray(struct.pack("<Q", len(A)) + A.encode() + b"1234" + bytes(40))
    for position, value in flips:
        content[position] = value
    path = tmp_path / "f.safetensors"
    path.write_bytes(content[:length])
    try:
        qtui_reads(path)
    except ModelError as error:
        assert_sentence(str(error))
        return
    if library_reads(path) is None:
        with pytest.raises(SafetensorError, match="unknown variant"):  # a dtype of tomorrow
            deserialize(path.read_bytes())


def test_every_dtype_the_library_knows_has_its_size(tmp_path, write):
    for dtype, bits in DTYPE_BITS.items():
        path = write(one(dtype, [8], [0, bits]), bytes(bits))
        assert library_reads(path) is not None
        assert open_model(path).tensors["a"].nbytes == bits


# The library refuses each of these, too.
MALFORMED: dict[str, tuple[object, bytes]] = {
    "not json": ("{", b""),
    "a list": ("[]", b""),
    "a number": ("1", b""),
    "nothing": ("", b""),
    "invalid utf-8": (b'{"\xff":1}', b""),
    "byte order mark": ("\ufeff" + A, b"1234"),
    "control character in a name": (A.replace('"a"', '"a\x01"'), b"1234"),
    "lone surrogate": (A.replace('"a"', '"\\ud800"'), b"1234"),
    "tensor is a number": ('{"a":1}', b""),
    "tensor is null": ('{"a":null}', b""),
    "tensor is NaN": ('{"a":NaN}', b""),
    "no dtype": ('{"a":{"shape":[1],"data_offsets":[0,4]}}', b"1234"),
    "no shape": ('{"a":{"dtype":"F32","data_offsets":[0,4]}}', b"1234"),
    "no offsets": ('{"a":{"dtype":"F32","shape":[1]}}', b"1234"),
    "dtype is a number": (one(4, [1], [0, 4]), b"1234"),
    "shape is a number": (one("F32", 1, [0, 4]), b"1234"),
    "negative dimension": (one("F32", [-1], [0, 4]), b"1234"),
    "two negative dimensions": (one("F32", [-1, -1], [0, 4]), b"1234"),
    "dimension is a float": (one("F32", [1.0], [0, 4]), b"1234"),
    "dimension is true": (one("F32", [True], [0, 4]), b"1234"),
    "dimension is text": (one("F32", ["1"], [0, 4]), b"1234"),
    "dimension is null": (one("F32", [None], [0, 4]), b"1234"),
    "dimension beyond 64 bits": (one("F32", [2**64], [0, 4]), b"1234"),
    "product beyond 64 bits": (one("F32", [2**32, 2**32], [0, 4]), b"1234"),
    "product times the dtype beyond 64 bits": (one("F32", [2**62], [0, 4]), b"1234"),
    "one offset": (one("F32", [1], [0]), b"1234"),
    "three offsets": (one("F32", [1], [0, 4, 4]), b"1234"),
    "offsets backwards": (one("F32", [1], [4, 0]), b"1234"),
    "negative offset": (one("F32", [1], [-4, 0]), b"1234"),
    "size is not the shape's": (one("F32", [2], [0, 4]), b"1234"),
    "half a byte": (one("F4", [3], [0, 2]), b"12"),
    "does not begin at 0": (one("F32", [1], [4, 8]), b"12345678"),
    "past the end": (one("F32", [2], [0, 8]), b"1234"),
    "bytes of no tensor": (one("F32", [1], [0, 4]), b"12345"),
    "hole": (one("F32", [1], [0, 4]) | b(1, 8), bytes(12)),
    "overlap": (one("F32", [2], [0, 8]) | b(2, 4), bytes(12)),
    "same place": (one("F32", [1], [0, 4]) | b(1, 0), bytes(4)),
    "metadata is text": ('{"__metadata__":"x"}', b""),
    "metadata of numbers": ('{"__metadata__":{"format":1}}', b""),
    "metadata is a list": ('{"__metadata__":[]}', b""),
    "deep": ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", b""),
    "deep objects": ('{"a":' * 5_000 + "1" + "}" * 5_000, b""),
    "number of many digits": (A.replace("[1]", f"[{'9' * 5000}]"), b"1234"),
}


@over("case", MALFORMED)
def test_malformed_headers_are_one_sentence(write, case):
    header, data = MALFORMED[case]
    path = write(header, data)
    assert library_reads(path) is None
    with pytest.raises(ModelError) as caught:
        open_model(path)
    assert_sentence(str(caught.value))


def assert_sentence(message: str) -> None:
    assert message.endswith(".")
    assert message.isprintable()
    assert len(message) < 600
    assert message[0].isupper() or message[0] in "'\""


# Stricter than the library, on purpose.
@pytest.mark.parametrize(
    ("header", "says"),
    [
        (A[:-1] + "," + A[1:], "twice"),
        ('{"__metadata__":{"k":"1","k":"2"}}', "twice"),
        (one("F32", [1] * 65, [0, 4]), "dimensions"),
    ],
)
def test_ambiguous_headers_are_refused(write, header, says):
    refused(write(header, b"1234"), says)


def peak_while(refusing: Path, says: str) -> int:
    tracemalloc.start()
    try:
        refused(refusing, says)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_header_may_not_ask_for_more_memory_than_its_text_is_worth(write):
    for length in (MAX_HEADER + 1, 5 << 30, 2**63, 2**64 - 1):
        path = write(A, b"1234", length=length)
        os.truncate(path, 6 << 30)  # sparse: as long as it claims, and takes no disk
        assert peak_while(path, "claims a header") < 1 << 20
        path.unlink()
    path = write("[" + "[]," * 10_000_000 + "[]]")
    assert peak_while(path, "more than any real model") < 100 << 20


WHOLE = struct.pack("<Q", len(A)) + A.encode() + b"1234"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        *((WHOLE[:keep], "cut off") for keep in (0, 1, 7, 8, 9, 40, -1)),
        (struct.pack("<Q", len(A) + 5) + WHOLE[8:], "cut off"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull"),
        (b"GGUF\x03\x00\x00\x00" + bytes(30), "GGUF"),
        (b"PK\x03\x04\x00\x00\x08\x08" + bytes(30), "zip archive"),
        (b"\x80\x02}q\x00(X\x01" + bytes(30), "pickle"),
        (b"<!DOCTYPE html><html></html>", "web page"),
    ],
)
def test_files_that_are_cut_off_or_others_are_told_apart(tmp_path, content, says):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    refused(path, says)


def test_a_length_that_begins_like_another_format_is_a_length(write):
    # 0x0280 = 640: the first two bytes of a pickle. 0x3c: the first byte of a web page.
    for length in (0x280, 0x13C):
        path = write(A + " " * (length - len(A)), b"1234")
        assert path.read_bytes()[0] in (0x80, 0x3C)
        assert list(open_model(path).tensors) == ["a"]


def test_unknown_dtypes_are_listed_and_not_read(write):
    header = {
        "mystery": {"dtype": "F3_E1M1", "shape": [5, 5], "data_offsets": [0, 7]},
        "plain": {"dtype": "U8", "shape": [2], "data_offsets": [7, 9]},
    }
    source = open_model(write(header, b"1234567ab"))
    info = source.tensors["mystery"]
    assert (info.dtype, info.shape, info.nbytes, info.readable) == ("F3_E1M1", (5, 5), 7, False)
    assert info.parameters == 25
    with pytest.raises(ModelError, match="does not read"):
        source.read_rows("mystery", 0, 1)
    assert source.read_rows("plain", 0, 2) == b"ab"


def test_a_dtype_is_printed_often_so_it_is_made_printable(write):
    header = {"a": {"dtype": "X\x1b[2J", "shape": [1], "data_offsets": [0, 1]}}
    assert open_model(write(header, b"1")).tensors["a"].dtype == "X\\x1b[2J"


def test_rows_out_of_range_are_a_mistake_of_the_caller(write):
    source = open_model(write(A, b"1234"))
    for start, stop in ((-1, 1), (0, 2), (1, 0)):
        with pytest.raises(ValueError, match="of 1 rows"):
            source.read_rows("a", start, stop)
    with pytest.raises(ModelError, match="no tensor 'b'"):
        source.read_rows("b", 0, 1)


def test_names_are_data_and_messages_quote_them(write):
    name = "w\x1b[31m\u202e\n"
    header = {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    assert list(open_model(write(header, b"1234")).tensors) == [name]
    header[name]["shape"] = [2]
    with pytest.raises(ModelError) as caught:
        open_model(write(header, b"1234"))
    assert str(caught.value).isprintable()
    assert "\\x1b[31m" in str(caught.value)


def test_rows_are_views_of_the_file_not_copies(write):
    path = write(
        {"a": {"dtype": "U8", "shape": [1 << 24], "data_offsets": [0, 1 << 24]}}, bytes(1 << 24)
    )
    source = open_model(path)
    tracemalloc.start()
    try:
        view = source.read_rows("a", 5, 1 << 24)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()
    assert view.readonly
    source.close()
    assert view[100] == 0  # what was read stays valid
    assert source.read_rows("a", 0, 1) == b"\0"  # and a closed source opens again on demand


def test_a_file_that_is_cut_off_while_it_is_read(write):
    """Rows are memory-mapped, so reading beyond the end of the file would kill the process."""
    path = write({"a": {"dtype": "U8", "shape": [9000], "data_offsets": [0, 9000]}}, bytes(9000))
    with open_model(path) as source:
        assert source.read_rows("a", 8000, 9000).nbytes == 1000
        os.truncate(path, 4000)
        for rows in ((0, 3), (8000, 9000)):
            with pytest.raises(ModelError, match="became shorter after it was opened; open"):
                source.read_rows("a", *rows)


def test_a_file_that_is_changed_is_not_read_by_the_header_it_had(write, tmp_path):
    """Its tensors may lie elsewhere now. A mapped file that was replaced is still whole."""
    header = {"a": {"dtype": "U8", "shape": [9000], "data_offsets": [0, 9000]}}
    for mapped, how in itertools.product((True, False), ("overwritten", "replaced", "deleted")):
        path = write(header, bytes(9000))
        with open_model(path) as source:
            if mapped:
                source.read_rows("a", 0, 9000)
            if how == "overwritten":
                with path.open("r+b") as file:
                    file.write(path.read_bytes()[:-9000] + b"x" * 9000)
                os.utime(path, (0, 0))  # two changes within a tick of the clock look like one
            elif how == "replaced":
                other = tmp_path / "other"
                other.write_bytes(path.read_bytes()[:-9000] + b"x" * 9000)
                other.replace(path)
            else:
                path.unlink()
            if mapped and how != "overwritten":
                assert bytes(source.read_rows("a", 0, 9000)) == bytes(9000), how
                continue
            with pytest.raises(ModelError, match=r"open the model again|cannot be read"):
                source.read_rows("a", 0, 9000)
