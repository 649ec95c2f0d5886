"""The map of errors by layer: its shades and its sentence hold what was measured."""

from __future__ import annotations

from types import SimpleNamespace

from qtui.report.inspection.layers import WIDTH, layer_map


def tensors(**errors):
    return [
        SimpleNamespace(
            info=SimpleNamespace(name=name.replace("__", ".") + ".weight"),
            errors=() if error is None else (SimpleNamespace(relative_mse=error),),
        )
        for name, error in errors.items()
    ]


def test_the_worst_is_full_the_least_is_not_blank_and_what_is_absent_is():
    found = layer_map(
        tensors(
            m__layers__0__a=0.01,
            m__layers__1__a=0.001,
            m__layers__1__b=0.0055,
            m__layers__2__norm=None,
            head=0.5,
            vision__0__a=0.9,
        ),
        0,
        "int4",
    )
    rows = dict(found.rows)
    assert rows == {"a": (1.0, 0.1), "b": (0.0, rows["b"][1])}
    assert abs(rows["b"][1] - 0.55) < 1e-9
    assert "m.layers, a column for each layer from 0 to 1: " in found.note
    assert "the lightest is m.layers.1.a.weight with 30.0 dB" in found.note
    assert "the darkest m.layers.0.a.weight with 20.0 dB" in found.note


def test_experts_are_one_row_and_many_layers_share_cells():
    layers = 2 * WIDTH - 1
    many = {
        f"m__{n}__experts__{e}__up": 0.01 if (n, e) == (5, 2) else 0.001
        for n in range(layers)
        for e in range(4)
    }
    found = layer_map(tensors(**many), 0, "int4")
    ((kind, cells),) = found.rows
    assert kind == "experts.*.up"
    assert len(cells) == WIDTH
    assert [n for n, share in enumerate(cells) if share == 1.0] == [2]
    assert "2 a cell, of which it is the worst" in found.note


def test_nothing_to_compare_is_no_map():
    assert layer_map(tensors(m__0__a=0.1, head=0.2), 0, "int4") is None
    assert layer_map(tensors(m__0__a=0.1, m__1__a=0.1), 0, "int4") is None
    assert layer_map(tensors(head=0.2), 0, "int4") is None
    exact = layer_map(tensors(m__0__a=0.0, m__1__a=0.1), 0, "int4")
    assert "m.0.a.weight with no error" in exact.note
