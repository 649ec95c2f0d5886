"""The report of an experiment, in every output format."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

from lab_findings import HEAT, PICTURES, result

from qtui.report.document import printable_document
from qtui.report.faces.html import to_html
from qtui.report.faces.json_face import to_json
from qtui.report.faces.markdown import to_markdown
from qtui.report.faces.plain import to_plain
from qtui.report.faces.text import write_text
from qtui.report.lab.document import (
    catalog_document,
    cell_text,
    conclusion_of,
    findings_csv,
    findings_table,
    lab_document,
)
from qtui_core.lab.catalog import EXPERIMENTS
from qtui_core.lab.results import Findings, LabColumn

COMMAND = "qtui lab underflow"


def test_every_face_has_the_question_the_settings_the_table_the_pictures_and_the_sentence() -> None:
    found = result()
    document = lab_document(found, COMMAND)
    for face in (to_plain(document), to_markdown(document), to_html(document)):
        text = unescape(face.replace("\\", ""))
        for wanted in (
            COMMAND, found.question, "0, 1", "the text inside", "+0.0090", "5.2%", "4 MiB",
            "fp8 is emulated", found.findings.verdict, "three times",
            *(picture.title for picture in PICTURES),
        ):  # fmt: skip
            assert wanted in text, wanted
    assert to_plain(document).rstrip().endswith(found.findings.verdict)


def test_the_first_column_is_repeated_where_a_table_is_in_parts() -> None:
    """Also where it has numbers, as widths in bits are."""
    columns = (LabColumn("bits", "bits"), LabColumn("d", "d"), LabColumn("seen", "seen"))
    found = Findings(columns, ({"bits": 2, "d": 0.1, "seen": "better"},))
    assert [column.key for column in findings_table(found).columns] == [True, False, False]


def test_a_cell_has_its_unit_and_a_sign_only_where_it_is_a_difference() -> None:
    for value, unit, text in (
        (0.9403, "loss", "0.9403"),
        (0.00123, "nats", "+0.0012"),
        (-0.00001, "nats", "+0.0000"),
        (0.052, "share", "5.2%"),
        (0.000053, "share", "0.0053%"),
        (0.0, "share", "0.0%"),
    ):
        assert cell_text(value, unit) == text
    columns = (LabColumn("a", "a", "loss"), LabColumn("b", "b", "nats"), LabColumn("c", "c"))
    titles = [column.title for column in findings_table(Findings(columns, ())).columns]
    assert titles == ["a, nats", "b, nats", "c"]


def test_what_is_asked_in_ascii_has_nothing_else_and_still_all_pictures() -> None:
    text = to_plain(lab_document(result(), COMMAND), ascii=True)
    assert text.isascii()
    assert "\\u" not in text  # no sign of a picture is an escape
    assert all(picture.title in text for picture in PICTURES)


def test_a_terminal_gets_the_same_pictures_with_colours() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    write_text(lab_document(result(), COMMAND), stream, color="16")
    text = stream.getvalue()
    assert "\x1b[34m" in text  # the first line of a chart
    assert all(picture.title in text for picture in PICTURES)


def test_json_is_the_result_itself() -> None:
    found = json.loads(to_json(lab_document(result(), COMMAND)))
    assert found["experiment"] == "underflow"
    assert found["schema_version"] == 1
    assert found["settings"]["seeds"] == [0, 1]
    assert found["rows"][0]["d"] == 0.009
    assert [p["title"] for p in found["pictures"]] == [p.title for p in PICTURES]
    assert found["conclusion"] == result().findings.verdict


def test_csv_has_raw_numbers_and_their_units() -> None:
    lines = io.StringIO()
    csv.writer(lines).writerows(findings_csv(result().findings))
    rows = list(csv.reader(io.StringIO(lines.getvalue())))
    assert rows == [
        ["recipe", "d_nats", "kept_share", "size_bytes"],
        ["nearest", "0.009", "0.052", str(4 << 20)],
        ["fp32", "", "", ""],
    ]


def test_the_sentence_says_where_an_experiment_did_not_come_to_its_end() -> None:
    nothing = Findings((), ())
    cases = {
        ("done", 4, False): result().findings.verdict,
        ("stopped", 2, False): f"Stopped after 2 of 4 parts. {result().findings.verdict}",
        ("stopped", 0, True): "Stopped after 0 of 4 parts. That is not enough to say anything.",
        ("failed", 1, True): "The experiment failed: no core was left.",
        ("done", 4, True): "Nothing was found that can be said: see the notes.",
    }
    for (ended, done, empty), sentence in cases.items():
        found = result(ended=ended, done=done)
        if ended == "failed":
            found = replace(found, fault="no core was left.")
        if empty:
            found = replace(found, findings=nothing)
        assert conclusion_of(found) == sentence
        assert to_plain(lab_document(found, COMMAND))


def test_names_of_a_model_are_neither_markup_nor_escapes_of_a_terminal() -> None:
    evil = "<script>\x1b[2J`|"
    pictures = (replace(HEAT, rows=(evil, "int8 tensor")), *PICTURES[:1])
    found = result(findings=replace(result().findings, pictures=pictures))
    document = printable_document(lab_document(found, COMMAND))
    assert to_html(document).count("<script>") == 1  # the page's own, which sorts
    for face in (to_plain(document), to_markdown(document), to_html(document)):
        assert "\x1b" not in face
    ElementTree.fromstring(to_html(document).partition("<body>")[2].partition("<figure")[1] + "/>")


def test_the_list_has_every_experiment_with_its_question_and_cost() -> None:
    text = to_plain(catalog_document())
    for experiment in EXPERIMENTS:
        assert experiment.name in text
        assert experiment.question in text
        assert f"{experiment.seconds} to {4 * experiment.seconds} s" in text
    data = json.loads(to_json(catalog_document()))
    assert [row["name"] for row in data["experiments"]] == [each.name for each in EXPERIMENTS]
