"""Where a run gets its weights and its text from, and how its failures are reported."""

from __future__ import annotations

import errno
import json
from itertools import chain, islice

import numpy as np
import pytest
from lazy_imports import LazyImport, lazy_names
from training_runs import configured

from qtui_core.errors import ModelError, UsageError
from qtui_core.memory.advice.fit import Advice
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.models import open_model
from qtui_core.models.demo import DEMO_FOLDER
from qtui_core.telemetry.machine import more_memory

torch = LazyImport("torch")
load_file = LazyImport("safetensors.torch", "load_file")
quantize_linears, stored_bytes = lazy_names(
    "qtui_core.training.model.quantized", "quantize_linears", "stored_bytes"
)
load_weights, settle = lazy_names("qtui_core.training.model.weights", "load_weights", "settle")
encode, fill = lazy_names("qtui_core.training.run.data", "encode", "fill")
asked_bytes, changes, fault_of, kind_of = lazy_names(
    "qtui_core.training.run.faults", "asked_bytes", "changes", "fault_of", "kind_of"
)


PLAN = resolve(RunPlan(method="full", batch=2, sequence=8), "bf16")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_weights_are_those_of_the_file_in_the_dtype_of_the_plan(dtype):
    stored = load_file(DEMO_FOLDER / "model.safetensors")
    with open_model("demo") as source:
        model = load_weights(source, resolve(RunPlan(method="full", dtype=dtype), "bf16")).model
    found = dict(model.named_parameters())
    assert found.keys() == stored.keys()
    wanted = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    for name, tensor in found.items():
        assert torch.equal(tensor.data, stored[name].to(wanted))
        assert tensor.dtype == wanted


@pytest.mark.parametrize("family", ["gpt2", "bloom", "gemma2"])
def test_random_weights_are_tied_where_a_config_does_not_say_otherwise(tmp_path, family):
    """These classes tie by default; two random matrices that differ would not be tied."""
    sizes = {"vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family} | sizes))
    with open_model(str(tmp_path / "config.json")) as source:
        model = load_weights(source, PLAN).model
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert head.weight is embedding.weight


def test_training_does_not_touch_the_file(tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((DEMO_FOLDER / name).read_bytes())
    before = (tmp_path / "model.safetensors").read_bytes()
    with open_model(str(tmp_path)) as source:
        model = load_weights(source, PLAN).model
        settle(model, "cpu")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_random_weights_are_each_their_own(tmp_path):
    with open_model(configured(tmp_path, vocab_size=5000)) as source:
        model = load_weights(source, PLAN).model
    settle(model, "cpu")
    storages = [p.data.untyped_storage() for p in model.parameters()]
    assert len({storage.data_ptr() for storage in storages}) == len(storages)
    for storage, parameter in zip(storages, model.parameters(), strict=True):
        assert storage.nbytes() == parameter.nbytes
    query = model.model.layers[0].self_attn.q_proj.weight
    assert 0.015 < float(query.detach().float().std()) < 0.025
    assert not torch.equal(query, model.model.layers[1].self_attn.q_proj.weight)
    assert bool((model.model.norm.weight == 1).all())
    # Positions are computed, not random.
    frequencies = model.model.rotary_emb.inv_freq
    assert torch.isfinite(frequencies).all()
    assert float(frequencies[0]) == 1.0


@pytest.mark.parametrize("quant", ["nf4", "int8"])
def test_weights_take_what_was_foreseen_of_them(tmp_path, quant):
    plan = resolve(RunPlan(method="inference", quant=quant), "bf16")
    with open_model(configured(tmp_path)) as source:
        model = load_weights(source, plan).model
    foreseen = stored_bytes(model, plan)
    quantize_linears(model, plan, "cpu")
    assert foreseen == sum(parameter.nbytes for parameter in model.parameters())


def test_a_model_with_weights_needs_its_tokenizer(tmp_path):
    with open_model("demo") as source:
        model = load_weights(source, PLAN).model
        assert encode("\ud800!", source, model).ids.tolist() == [ord("?"), ord("!")]
        found = encode("é!", source, model)
        assert found.ids.tolist() == [0xC3, 0xA9, 0x21]
        assert found.decode(0x21) == "!"
        with pytest.raises(UsageError, match="2"):
            encode("a", source, model)
        assert encode("a", source, model, least=1).ids.tolist() == [0x61]  # a prompt
        with pytest.raises(UsageError, match="0 tokens"):
            encode("", source, model, least=1)
    with open_model(configured(tmp_path, vocab_size=40)) as source:
        model = load_weights(source, PLAN).model
        assert encode("abc", source, model).ids.tolist() == [97 % 40, 98 % 40, 99 % 40]


def test_a_text_is_read_in_order_and_again():
    ids = np.arange(20, dtype=np.int64)
    batch = {"input_ids": torch.zeros(2, 8, dtype=torch.int64)}
    seen = [batch["input_ids"].flatten().tolist() for _ in islice(fill(batch, ids, PLAN), 3)]
    assert list(chain(*seen)) == [*range(20), *range(20), *range(8)]


@pytest.mark.parametrize(
    ("said", "nbytes"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total", 20 << 20),
        ("CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 15.78 GiB", 3 << 29),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.", 4096),
        ("CUDA error: out of memory", None),
    ],
)
def test_what_was_asked_for_is_read(said, nbytes):
    assert asked_bytes(said) == nbytes
    assert kind_of(RuntimeError(said)) == "out of memory"


def test_kinds_of_faults():
    assert kind_of(torch.OutOfMemoryError("x")) == kind_of(MemoryError()) == "out of memory"
    assert kind_of(RuntimeError("CUDA error: unspecified launch failure")) == "driver"
    assert kind_of(ModelError("gone")) == "model"
    # Libraries that allocate themselves, and an allocator that cannot ask NVML whose memory it is.
    for said in (
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDA driver error: out of memory",
        'NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "../c10/cuda/'
        'CUDACachingAllocator.cpp":1131',
    ):
        assert kind_of(RuntimeError(said)) == "out of memory"
    # Where the address space is limited: a library that is loaded, and a kernel that is made.
    assert kind_of(ImportError("libtorch.so: failed to map segment from shared object")) == (
        kind_of(RuntimeError("could not create a primitive"))
    )
    assert kind_of(RuntimeError("could not create a primitive descriptor")) == "failure"
    error = ModelError("This config.json is not accepted.")
    error.__cause__ = OSError(errno.ENOMEM, "Cannot allocate memory")
    fault = fault_of(error, 0.0, 0, "import", {}, ())
    assert fault.kind == "out of memory"
    assert fault.text.startswith("Memory ran out in import. ")
    assert fault.text.endswith(more_memory())
    assert kind_of(RuntimeError("shapes differ")) == kind_of(ValueError("no")) == "failure"


def test_what_a_gpu_cannot_do_is_said():
    """With torch's message for a kernel that a CPU lacks, and with those for CUDA."""

    def said(error: Exception) -> str:
        return fault_of(error, 0.0, 1, "forward", {}, ()).text

    image = "CUDA error: no kernel image is available for execution on the device"
    assert "not built for this GPU" in said(RuntimeError(image))
    q = torch.zeros(1, 1, 8, 8)
    efficient = torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION
    with torch.nn.attention.sdpa_kernel(efficient), pytest.raises(RuntimeError) as told:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    for error in (told.value, RuntimeError("No available kernel. Aborting execution.")):
        assert "--attention sdpa" in said(error)


def test_advice_is_of_the_phase():
    plan = RunPlan()
    advice = [
        Advice("--a", plan, 100, "", "loss", {"loss": 100, "forward": 0}),
        Advice("--b", plan, 50, "", "loss", {"loss": 50, "forward": 70}),
    ]
    assert changes(advice, "loss") == (("--a", 100), ("--b", 50))
    assert changes(advice, "forward") == (("--b", 70),)
    assert changes(advice, "import") == ()  # of which the estimate knows nothing
    error = torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")
    held = {"weights": 10 << 30, "activations": 12 << 30, "inputs": 0}
    fault = fault_of(error, 1.0, 4, "forward", held, advice)
    assert fault.largest == (("activations", 12 << 30), ("weights", 10 << 30))
    assert fault.text.startswith("Memory ran out in step 4, forward, when 2 GiB more")
    assert "--b would save 70 B there" in fault.text
