"""Linear layers of bitsandbytes in the place of a model's own, as from_pretrained puts them."""

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
    """Puts quantized layers where transformers would, their weights quantized by bitsandbytes.

    The plain model is on the CPU. Its tensors go to the device one after the other, in the order of
    their names (convert_and_load_state_dict_in_model of transformers' core_model_loading); of a
    weight that is quantized only the codes and constants stay there. Where the device is the CPU
    itself, copies stand for what a GPU would be given. Transformers' quantizer decides which
    weights stay as they are: the head, what is tied to it, what is kept in float32.
    """
    from transformers import BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear

    quant = plan.quant or ""
    eight = quant == "int8"
    settings = BitsAndBytesConfig(
        load_in_8bit=eight,
        load_in_4bit=not eight,
        bnb_4bit_quant_type=quant.partition("-")[0] if not eight else "nf4",
        bnb_4bit_use_double_quant=quant.endswith("-dq"),
        bnb_4bit_compute_dtype=_compute_dtype(plan),
        bnb_4bit_quant_storage=_STORAGES[plan.quant_storage],
    )
    kept = _kept(model)
    plain = {name: module for name, module in model.named_modules() if _is_linear(module)}
    with unset_fake_temporarily():  # the new layers are empty ones of a tensor class of their own
        replace_with_bnb_linear(model, kept, settings)
    read: set[int] = set()
    for name, module in sorted(model.named_modules(), key=_by_name):
        old = plain.pop(name, None)  # each plain weight may be freed once its place is filled
        if old is not None and module is not old:
            _fill(module, old, eight, device)
            # On some CPUs bitsandbytes would repack weights in an inference, for a kernel of its
            # own.
            module.support_avx512bf16_for_cpu = False
        else:
            _read(module, device, read)
    model.is_loaded_in_8bit = eight
    model.is_loaded_in_4bit = not eight
    model.is_quantized = True
    model.quantization_method = settings.quant_method
    model.config.quantization_config = settings


def _by_name(entry: tuple[str, nn.Module]) -> list[tuple[int, int, str]]:
    """A sort key of a name by its parts: numbers as numbers, before words."""
    parts = entry[0].split(".")
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


def _read(module: nn.Module, device: torch.device | str, read: set[int]) -> None:
    """Puts a module's own tensors on a device, as copies even if they are there already. `read` are
    the ids of parameters that were put there; several modules may share one."""
    for parameter in module.parameters(recurse=False):
        if id(parameter) not in read and not _is_fake(parameter):
            read.add(id(parameter))
            parameter.data = parameter.data.to(device, copy=True)
    for name, buffer in module._buffers.items():
        if buffer is not None and not _is_fake(buffer):
            module._buffers[name] = buffer.to(device, copy=True)


def stored_bytes(model: Any, plan: RunPlan) -> int:
    """Bytes of the weights of a plain model once they are quantized, without their constants."""
    from transformers.quantizers.quantizers_utils import should_convert_module

    kept = _kept(model)
    share = 1 if plan.quant == "int8" else 2
    total = sum(parameter.nbytes for parameter in model.parameters())
    for name, module in model.named_modules():
        if _is_linear(module) and should_convert_module(name, kept):
            weight = module.weight
            total -= weight.nbytes - -(-weight.numel() // share)
    return total


def _kept(model: Any) -> list[str]:
    """Modules that are not quantized."""
    from transformers.quantizers.base import get_keys_to_not_convert

    return [*get_keys_to_not_convert(model), *(model._keep_in_fp32_modules or ())]


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def quantized_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of the constants beside quantized weights: block maxima, tables, offsets, and
    the table that bitsandbytes itself holds once block maxima have been quantized."""
    nested = False
    for name, module in model.named_modules():
        state = getattr(module, "state", None)
        scales = getattr(state, "SCB", None)
        if scales is None:  # which the first forward pass takes from the weight
            scales = getattr(getattr(module, "weight", None), "SCB", None)
        if isinstance(scales, torch.Tensor):
            yield f"{name}.weight.SCB", scales
    for name, parameter in model.named_parameters():
        state = getattr(parameter, "quant_state", None)
        if state is None:
            continue
        yield f"{name}.absmax", state.absmax
        yield f"{name}.code", state.code
        if state.nested:
            nested = True
            yield f"{name}.offset", state.offset
            yield f"{name}.nested_absmax", state.state2.absmax
            yield f"{name}.nested_code", state.state2.code
    if nested:
        from bitsandbytes.functional import name2qmap

        yield from name2qmap.items()


def _compute_dtype(plan: RunPlan) -> torch.dtype:
    """What quantized layers multiply in: the 16-bit type of the run."""
    name = plan.dtype if plan.dtype in ("bf16", "fp16") else plan.autocast_dtype
    return torch.float16 if name == "fp16" else torch.bfloat16


def _fill(module: Any, old: Any, eight: bool, device: torch.device | str) -> None:
    """Gives a layer of bitsandbytes the weight of a plain one, quantized on `device`."""
    from bitsandbytes import nn as bnb

    weight = old.weight.data
    if type(old).__name__ == "Conv1D":
        weight = weight.t()
    if _is_fake(weight):
        made = _fake_rows if eight else _fake_quantized
        module.weight = made(module, weight.contiguous())
    else:
        kind = bnb.Int8Params if eight else bnb.Params4bit
        settings = dict(module.weight.__dict__)
        settings.pop("SCB", None)
        if torch.device(device).type == "cpu" and not (eight and weight.dtype != torch.float16):
            weight = weight.clone()  # LLM.int8 makes one of another type itself
        module.weight = kind(weight, requires_grad=False, **settings).to(device)
    if old.bias is not None:
        bias = old.bias.data
        if not _is_fake(bias):
            bias = bias.to(device, copy=True)
        module.bias = nn.Parameter(bias, requires_grad=False)


def _fake_quantized(module: Any, weight: torch.Tensor) -> nn.Parameter:
    """A quantized weight of fake tensors. Params4bit is a tensor subclass and cannot be fake, so
    this is a plain parameter with the attributes that layers and peft look for."""
    from bitsandbytes import functional

    old = module.weight
    packed, state = functional.quantize_4bit(
        weight,
        blocksize=old.blocksize,
        compress_statistics=old.compress_statistics,
        quant_type=old.quant_type,
        quant_storage=old.quant_storage,
    )
    parameter = nn.Parameter(packed, requires_grad=False)
    for name, value in {**old.__dict__, "quant_state": state, "bnb_quantized": True}.items():
        setattr(parameter, name, value)
    module.quant_state = state
    return parameter


def _fake_rows(module: Any, weight: torch.Tensor) -> nn.Parameter:
    """The same for LLM.int8: codes with one scale a row (int8_vectorwise_quant)."""
    half = weight.to(torch.float16)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    parameter: Any = nn.Parameter(torch.empty_like(half, dtype=torch.int8), requires_grad=False)
    parameter.CB, parameter.SCB, parameter.has_fp16_weights = parameter.data, scales, False
    return parameter


def _is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)
