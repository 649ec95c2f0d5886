"""Replaces linear layers of a model by those of bitsandbytes, as from_pretrained does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from qtui_core.memory.plan.run_plan import RunPlan

_STORAGES: Final = {
    "uint8": torch.uint8, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32
}  # fmt: skip


def quantize_linears(model: Any, plan: RunPlan, device: torch.device | str) -> None:
    """Replaces the linear layers that transformers would replace by quantized ones, whose weights
    bitsandbytes quantizes.

    The plain model is on the CPU. Its tensors move to the device one by one, in the order of their
    names (convert_and_load_state_dict_in_model of transformers' core_model_loading); of a quantized
    weight only the codes and constants stay there. If the device is the CPU itself, the tensors are
    copied, as a GPU would receive copies. Transformers' quantizer decides which weights stay as
    they are: the head, weights tied to it, weights that are kept in float32.
    """
    from transformers import BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear

    quant = plan.quant or ""
    eight = quant == "int8"
    # Quantized layers multiply in the 16-bit dtype of the run.
    half = plan.dtype if plan.dtype in ("bf16", "fp16") else plan.autocast_dtype
    settings = BitsAndBytesConfig(
        load_in_8bit=eight,
        load_in_4bit=not eight,
        bnb_4bit_quant_type=quant.partition("-")[0] if not eight else "nf4",
        bnb_4bit_use_double_quant=quant.endswith("-dq"),
        bnb_4bit_compute_dtype=_STORAGES[half],
        bnb_4bit_quant_storage=_STORAGES[plan.quant_storage],
    )
    kept = _kept(model)
    plain = {name: module for name, module in model.named_modules() if is_linear(module)}
    with unset_fake_temporarily():  # the new layers are empty and of a tensor subclass
        replace_with_bnb_linear(model, kept, settings)
    own = {name for name, _ in model.named_parameters()}  # a tied weight has its first name

    def order(entry: tuple[str, nn.Module]) -> list[tuple[int, int, str]]:
        """Numbers in names compare as numbers and come before words."""
        return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in entry[0].split(".")]

    for name, module in sorted(model.named_modules(), key=order):
        old = plain.pop(name, None)  # a plain weight may be freed once it is replaced
        if old is not None and module is not old:
            _fill(module, old, eight, device)
            # On some CPUs bitsandbytes would repack weights for an inference kernel.
            module.support_avx512bf16_for_cpu = False
        else:
            _read(module, device, {key for key in module._parameters if f"{name}.{key}" in own})
    model.is_loaded_in_8bit = eight
    model.is_loaded_in_4bit = not eight
    model.is_quantized = True
    model.quantization_method = settings.quant_method
    model.config.quantization_config = settings


def _read(module: nn.Module, device: torch.device | str, own: set[str]) -> None:
    """Moves a module's buffers and its `own` parameters, which no module before it has, to a
    device; they are copied even if they are there already."""
    for name, parameter in module.named_parameters(recurse=False):
        if name in own and not isinstance(parameter.data, FakeTensor):
            parameter.data = parameter.data.to(device, copy=True)
    for name, buffer in module._buffers.items():
        if buffer is not None and not isinstance(buffer, FakeTensor):
            module._buffers[name] = buffer.to(device, copy=True)


def stored_bytes(model: Any, plan: RunPlan) -> int:
    """The bytes of a plain model's weights after quantization, without quantization constants."""
    from transformers.quantizers.quantizers_utils import should_convert_module

    kept = _kept(model)
    share = 1 if plan.quant == "int8" else 2
    total = sum(parameter.nbytes for parameter in model.parameters())
    for name, module in model.named_modules():
        if is_linear(module) and should_convert_module(name, kept):
            weight = module.weight
            total -= weight.nbytes - -(-weight.numel() // share)
    return total


def _kept(model: Any) -> list[str]:
    """The names of modules that are not quantized."""
    from transformers.quantizers.base import get_keys_to_not_convert

    return [*get_keys_to_not_convert(model), *(model._keep_in_fp32_modules or ())]


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, including those of bitsandbytes and the Conv1D of
    GPT-2."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def quantized_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of the constants of quantized weights: block maxima, tables, offsets, and the
    table that bitsandbytes itself keeps once block maxima have been quantized."""
    for name, module in model.named_modules():
        # The first forward pass moves it from the weight to the state of the layer.
        holders = (getattr(module, "state", None), getattr(module, "weight", None))
        scales = (getattr(holder, "SCB", None) for holder in holders)
        for tensor in [one for one in scales if isinstance(one, torch.Tensor)][:1]:
            yield f"{name}.weight.SCB", tensor
    states = {n: getattr(p, "quant_state", None) for n, p in model.named_parameters()}
    for name, state in states.items():
        if state is None:
            continue
        yield f"{name}.absmax", state.absmax
        yield f"{name}.code", state.code
        if state.nested:
            yield f"{name}.offset", state.offset
            yield f"{name}.nested_absmax", state.state2.absmax
            yield f"{name}.nested_code", state.state2.code
    if any(state is not None and state.nested for state in states.values()):
        from bitsandbytes.functional import name2qmap

        yield from name2qmap.items()


def _fill(module: Any, old: Any, eight: bool, device: torch.device | str) -> None:
    """Sets the weight of a bitsandbytes layer to that of a plain one, quantized on `device`."""
    from bitsandbytes import nn as bnb

    weight = old.weight.data
    fake = isinstance(weight, FakeTensor)
    if type(old).__name__ == "Conv1D":
        weight = weight.t()
    if fake:
        made = _fake_rows if eight else _fake_quantized
        module.weight = made(module, weight.contiguous())
    else:
        settings = dict(module.weight.__dict__)
        settings.pop("SCB", None)
        if torch.device(device).type == "cpu" and not (eight and weight.dtype != torch.float16):
            weight = weight.clone()  # LLM.int8 itself creates one of another dtype
        kind = bnb.Int8Params if eight else bnb.Params4bit
        module.weight = kind(weight, requires_grad=False, **settings).to(device)
    if old.bias is not None:
        bias = old.bias.data if fake else old.bias.data.to(device, copy=True)
        module.bias = nn.Parameter(bias, requires_grad=False)


def _fake_quantized(module: Any, weight: torch.Tensor) -> nn.Parameter:
    """A quantized weight of fake tensors. Params4bit is a tensor subclass and cannot be fake, so
    this is a plain parameter with the attributes that layers and peft read; of bytes, for peft
    raises plain ones of 16 bits to float32."""
    from bitsandbytes import functional

    old = module.weight
    names = ("blocksize", "compress_statistics", "quant_type", "quant_storage")
    packed, state = functional.quantize_4bit(weight, **{name: getattr(old, name) for name in names})
    parameter = nn.Parameter(packed.view(torch.uint8).view(-1, 1), requires_grad=False)
    parameter.__dict__.update(old.__dict__, quant_state=state, bnb_quantized=True)
    module.quant_state = state
    return parameter


def _fake_rows(module: Any, weight: torch.Tensor) -> nn.Parameter:
    """The same for LLM.int8: codes with one scale per row (int8_vectorwise_quant)."""
    half = weight.to(torch.float16)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    parameter: Any = nn.Parameter(torch.empty_like(half, dtype=torch.int8), requires_grad=False)
    parameter.CB, parameter.SCB, parameter.has_fp16_weights = parameter.data, scales, False
    return parameter
