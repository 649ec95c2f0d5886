"""`qtui memory` as a user runs it: a config.json, four output formats and an exit code."""

from __future__ import annotations

import dataclasses
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from qtui_core.memory import RunPlan, estimate
from qtui_core.memory.devices.device import DEVICES
from qtui_core.memory.shape.from_config import shape_from_config

CONFIGS = Path(__file__).parents[1] / "memory" / "configs"
LLAMA = str(CONFIGS / "llama-3.1-8b.json")


def memory(qtui, *args, code=0, **options):
    done = qtui("memory", *args, "--json", **options)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_json_is_the_estimate_of_the_library(qtui):
    data = memory(qtui, LLAMA, "--batch", "2", "--seq", "1024")
    shape = shape_from_config(json.loads(Path(LLAMA).read_text()))
    found = estimate(shape, RunPlan(batch=2, sequence=1024))
    assert data["schema_version"] == 1
    assert data["model"] == LLAMA
    assert data["parameters"] == 8_030_261_248
    assert data["plan"] == json.loads(json.dumps(dataclasses.asdict(found.plan)))
    for key in ("resident_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "process_bytes"):
        assert data[key] == getattr(found, key)
    assert (data["peak_phase"], data["origin"]) == (found.peak_phase, "tape")
    assert sum(c["bytes"] for c in data["components"]) == data["peak_allocated_bytes"]
    assert sum(t["bytes"] for t in data["terms"]) == data["peak_allocated_bytes"]
    beyond = sum(t["bytes"] for t in data["beyond_allocated"])
    assert data["peak_allocated_bytes"] + beyond == data["process_bytes"]
    for component in data["components"]:
        assert {"name", "bytes", "formula", "basis"} <= set(component)
        assert component["basis"] in ("exact", "derived", "calibrated")
    assert max(p["allocated_bytes"] for p in data["phases"]) == data["peak_allocated_bytes"]
    assert len(data["fits"]) == len(DEVICES)
    assert {f["verdict"] for f in data["fits"]} <= {"fits", "tight", "no"}
    saved = [a["saves_bytes"] for a in data["advice"]]
    assert saved
    assert saved == sorted(saved, reverse=True)
    kinds = {cure["kind"] for cure in data["cures"]}
    assert {"forward", "loss", "backward", "optimizer", "fragmentation"} <= kinds
    assert data["compute"]["six_n_d"] == 6 * 7_504_658_432 * 2048
    assert data["conclusion"].endswith(".")


def test_the_exit_code_says_whether_it_fits(qtui):
    fits = memory(qtui, LLAMA, "--gpu", "a100-80")
    assert (fits["gpu"], fits["fits"][0]["verdict"]) == ("A100 SXM4 80GB", "fits")
    assert fits["fits"][0]["gpu"] == fits["gpu"]
    assert fits["compute"]["seconds_at_least"] > 0
    small = memory(qtui, LLAMA, "--vram", "8GiB", code=1)
    assert small["fits"][0]["verdict"] == "no"
    assert small["fits"][0]["capacity_bytes"] == 8 << 30
    assert "does not fit" in small["conclusion"]


def test_the_largest_batch_fits_and_the_next_does_not(qtui):
    where = ("demo", "--vram", "2GiB", "--seq", "1024")
    largest = memory(qtui, *where, "--max", "batch")["largest"]
    assert (largest["option"], largest["gpu"]) == ("--batch", "a GPU of 2 GiB")
    batch = largest["value"]
    fits = memory(qtui, *where, "--batch", str(batch))
    assert fits["fits"][0]["verdict"] == "fits"
    assert fits["process_bytes"] == largest["process_bytes"]
    done = qtui("memory", *where, "--batch", str(batch + 1), "--json")
    assert json.loads(done.stdout)["fits"][0]["verdict"] != "fits"


def test_every_option_of_a_plan_reaches_the_estimate(qtui):
    data = memory(
        qtui, LLAMA, "--method", "lora", "--batch", "3", "--seq", "300", "--dtype", "float16",
        "--no-autocast", "--kbit-prep", "norms", "--lora-rank", "4", "--lora-targets",
        "q_proj,v_proj", "--lora-dropout", "0.1", "--adapter-dtype", "bf16", "--optimizer", "sgd",
        "--checkpointing", "--attention", "eager", "--padding-mask", "--loss", "stock-4.48",
        "--accumulation", "2", "--loop", "manual", "--segments", "expandable", "--torch", "2.8",
    )  # fmt: skip
    plan = data["plan"]
    assert plan["method"] == "lora"
    assert (plan["batch"], plan["sequence"], plan["dtype"]) == (3, 300, "fp16")
    assert (plan["autocast"], plan["checkpointing"], plan["padding_mask"]) == (False, True, True)
    assert (plan["lora_rank"], plan["lora_targets"]) == (4, ["q_proj", "v_proj"])
    assert (plan["lora_dropout"], plan["adapter_dtype"]) == (0.1, "bf16")
    assert (plan["optimizer"], plan["attention"], plan["loss"]) == ("sgd", "eager", "stock-4.48")
    assert (plan["accumulation"], plan["loop"], plan["segments"]) == (2, "manual", "expandable")
    assert (plan["kbit_prep"], plan["torch"], plan["quant"]) == ("norms", "2.8", None)


def test_text_says_all_and_its_last_line_what_it_means(qtui):
    done = qtui("memory", "demo", "--explain", "--gpu", "L4")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    for part in (
        "--method qlora --batch 1 --seq 2048", "--lora-targets all-linear", "--segments native",
        "At the peak", "By phase", "Symbols", "Terms of the peak", "They sum to",
        "From the peak to the process", "In closed form", "What it fits on", "C = 6ND", "a bound",
        "What would save memory", "When memory runs out",
    ):  # fmt: skip
        assert part in text
    last = text.strip().splitlines()[-1]
    assert last.startswith("The run needs ")
    assert "It fits L4" in last


def test_notes_say_what_the_gpu_or_the_sequence_changes(qtui):
    text = qtui("memory", "demo", "--gpu", "T4", "--seq", "4096").stdout
    assert "T4 has no flash attention" in text
    assert "longer than the 2,048 positions" in text


def test_what_is_nothing_to_the_method_is_said(qtui):
    trained = memory(qtui, "demo", "--generate", "64")
    assert trained["plan"]["generate"] == 0
    assert any("--generate 64 changes nothing" in note for note in trained["notes"])
    asked = memory(qtui, "demo", "--method", "inference", "--accumulation", "4")
    assert asked["plan"]["accumulation"] == 1
    assert any("--accumulation 4 changes nothing" in note for note in asked["notes"])
    once = memory(qtui, "demo", "--method", "inference")
    assert asked["compute"] == once["compute"]
    assert not any("changes nothing" in note for note in once["notes"])


def test_the_default_sequence_is_no_longer_than_learned_positions(qtui):
    gpt2 = str(CONFIGS / "gpt2-medium.json")
    assert memory(qtui, gpt2)["plan"]["sequence"] == 1024
    asked = memory(qtui, gpt2, "--method", "inference", "--generate", "24")
    assert asked["plan"]["sequence"] == 1000
    assert memory(qtui, gpt2, "--max", "seq", "--gpu", "H100")["largest"]["value"] == 1024
    typed = qtui("memory", gpt2, "--seq", "2048")
    assert typed.returncode == 2
    assert "use --seq 1024 or less" in typed.stderr


def test_not_even_the_least_is_said_with_what_was_tried(qtui):
    done = qtui("memory", LLAMA, "--vram", "1GiB", "--max", "seq")
    assert done.returncode == 1
    assert "not even 64 fits" in done.stdout
    longest = qtui("memory", "demo", "--vram", "24GiB", "--max", "seq")
    assert "the model was made for 2,048 positions" in longest.stdout


def test_paged_states_are_tight_where_they_have_to_leave(qtui):
    """The GPU has room for the tensors, but not for the optimizer states as well."""
    gpt2 = str(CONFIGS / "gpt2-medium.json")
    plan = ("--method", "full", "--optimizer", "paged-adamw")
    data = memory(qtui, gpt2, *plan)
    paged = next(t for t in data["beyond_allocated"] if t["name"] == "paged optimizer states")
    assert paged["bytes"] > 1 << 30
    less = (data["process_bytes"] - paged["bytes"] // 2) >> 20
    tight = memory(qtui, gpt2, *plan, "--vram", f"{less}MiB")
    assert tight["fits"][0]["verdict"] == "tight"
    assert "the paged states" in tight["conclusion"]


class _Balanced(HTMLParser):
    """Raises if tags are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("format", ["markdown", "html", "text"])
def test_all_faces_show_the_same_numbers(qtui, format, tmp_path):
    peak = f"{memory(qtui, 'demo')['peak_allocated_bytes']:,}"
    done = qtui("memory", "demo", "--format", format, "-o", str(tmp_path / "report"))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report").read_text()
    assert peak in page
    if format == "html":
        parser = _Balanced()
        parser.feed(page)
        assert parser.open == []
        # The curve: an area for each component, and the name of its widest phases.
        assert page.count("<polygon") >= 8
        assert ">forward</text>" in page
        assert ">backward</text>" in page


def test_ascii_is_ascii(qtui):
    assert qtui("memory", "demo", "--ascii").stdout.isascii()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((LLAMA, "--gpu", "RTX 409"), "Near it: RTX 4090"),
        ((LLAMA, "--vram", "much"), "no amount of memory"),
        ((LLAMA, "--gpu", "T4", "--vram", "8GiB"), "choose one"),
        ((LLAMA, "--max", "batch"), "--gpu or --vram"),
        ((LLAMA, "--max", "seq", "--gpu", "T4", "--trace"), "choose one"),
        ((LLAMA, "--method", "full", "--quant", "nf4"), "cannot be trained"),
        ((LLAMA, "--zero", "3"), "only one such GPU"),
        ((LLAMA, "--loss", "focal"), "is not one of 'stock'"),
        ((LLAMA, "--batch", "0"), "between 1 and"),
        ((LLAMA, "--lora-targets", "no_such_proj"), "no_such_proj"),
        ((LLAMA, "--optimizer", "lion"), "lion"),
    ],
)
def test_what_cannot_be_is_refused_in_words(qtui, args, says):
    done = qtui("memory", *args)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def write(path: Path, **config: object) -> str:
    path.write_text(json.dumps(config))
    return str(path)


def test_an_unknown_family_has_bounds_and_its_code_is_not_run(qtui, tmp_path):
    (tmp_path / "modeling.py").write_text("open('ran', 'w').write('yes')")
    config = write(
        tmp_path / "config.json", model_type="my_own", auto_map={"AutoModel": "modeling.Own"},
        hidden_size=64, num_hidden_layers=2, vocab_size=256, num_attention_heads=4,
    )  # fmt: skip
    data = memory(qtui, config, "--method", "lora", cwd=tmp_path)
    assert data["origin"] == "bounds"
    assert "never executed" in data["notes"][0]
    assert "knows no model of type 'my_own'" in data["notes"][0]
    for name in ("peak_live_bytes", "peak_allocated_bytes", "process_bytes"):
        assert data["low"][name] < data[name] < data["high"][name]
    assert not (tmp_path / "ran").exists()
    middle = (data["peak_allocated_bytes"] + data["high"]["peak_allocated_bytes"]) // 2
    gated = qtui("memory", config, "--method", "lora", "--no-trace", "--fail-if", f"peak>{middle}B")
    assert gated.returncode == 1  # a gate takes the high end
    empty = qtui("memory", write(tmp_path / "empty.json", model_type="mamba2", hidden_size=64))
    assert empty.returncode == 2
    assert "num_hidden_layers or vocab_size" in empty.stderr


def test_a_model_that_is_not_there_is_exit_code_3(qtui, tmp_path):
    assert qtui("memory", str(tmp_path / "none.json")).returncode == 3
    weights = tmp_path / "model.safetensors"
    weights.write_bytes((2).to_bytes(8, "little") + b"{}")
    done = qtui("memory", str(weights))
    assert done.returncode == 3
    assert "config.json" in done.stderr


def test_inspect_has_the_memory_of_its_plan(qtui):
    done = qtui("inspect", "demo", "--headers", "--json", "--method", "lora", "--seq", "256")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["memory"]
    alone = memory(qtui, "demo", "--method", "lora", "--seq", "256")
    assert data == {k: v for k, v in alone.items() if k not in ("schema_version", "conclusion")}
    text = qtui("inspect", "demo", "--headers").stdout
    assert "Memory of a run" in text
    assert "The run needs " in text


def test_inspect_says_why_it_has_no_memory(qtui, checkpoint):
    done = qtui("inspect", str(checkpoint), "--headers")
    assert done.returncode == 0, done.stderr
    assert "Not estimated: " in done.stdout
    asked = qtui("inspect", str(checkpoint), "--headers", "--batch", "2")
    assert asked.returncode == 2
    assert "does not say hidden_size" in asked.stderr
    both = qtui("inspect", "demo", "--against", "demo", "--batch", "2")
    assert both.returncode == 2
    assert "--batch is of a run" in both.stderr


@pytest.mark.slow
def test_a_trace_is_reported_as_an_estimate_is(qtui):
    tape = memory(qtui, "demo", "--seq", "128")
    trace = memory(qtui, "demo", "--seq", "128", "--trace")
    assert (tape["origin"], trace["origin"]) == ("tape", "trace")
    assert set(tape) == set(trace)
    assert trace["peak_allocated_bytes"] == pytest.approx(tape["peak_allocated_bytes"], rel=0.005)
    assert sum(c["bytes"] for c in trace["components"]) == trace["peak_allocated_bytes"]


@pytest.mark.parametrize("method", ["qlora", "inference"])
def test_only_a_step_that_the_class_cannot_run_has_bounds(qtui, method):
    data = memory(qtui, str(CONFIGS / "gemma-3n-e4b.json"), "--method", method)
    assert data["origin"] == ("bounds" if method == "qlora" else "tape")
    assert ("clips weights of AltUp" in data["notes"][0]) == (method == "qlora")


@pytest.mark.slow
def test_a_family_without_a_shape_is_traced(qtui, tmp_path):
    config = write(
        tmp_path / "config.json", model_type="glm", architectures=["GlmForCausalLM"],
        hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=512, pad_token_id=0, torch_dtype="bfloat16",
    )  # fmt: skip
    plan = ("--method", "full", "--seq", "64")
    data = memory(qtui, config, *plan)
    assert data["origin"] == "trace"
    assert data["notes"][0].startswith("No shape of models of type 'glm' is built in. The class")
    assert memory(qtui, config, *plan, "--trace")["phases"] == data["phases"]
    assert memory(qtui, config, *plan, "--no-trace")["origin"] == "bounds"
    assert memory(qtui, config, *plan, "--max", "batch", "--vram", "1GiB")["origin"] == "bounds"
    assert data["parameters"] is None
    assert data["advice"] == []
    assert data["conclusion"].endswith("a trace covers one plan.")
    assert sum(c["bytes"] for c in data["components"]) == data["peak_allocated_bytes"] > 0
