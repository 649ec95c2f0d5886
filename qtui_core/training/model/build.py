"""Builds a real model of transformers for a plan, from a config.json to adapters, quantized weights
and an optimizer.

The weights are random, or fake tensors without values. Everything is made by the libraries
themselves: the classes of the installed transformers, never code that comes with a model, the
adapters of peft, and the linear layers of bitsandbytes with their quantization.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto as auto

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.loading.model import configuration_object
from qtui_core.memory.plan.options import ALL_LINEAR
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.folding import Fold
from qtui_core.memory.replay.record import Component
from qtui_core.memory.shape.from_config import LANGUAGE_MODELS, is_traceable
from qtui_core.training.model.losses import set_loss
from qtui_core.training.model.quantized import quantize_linears, quantized_tensors
from qtui_core.training.model.stacks import Stack, fold_layers, stacks_of

_HEADS = (
    auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    auto.MODEL_FOR_MASKED_LM_MAPPING,
)


def configuration_of(config: Mapping[str, Any], plan: RunPlan) -> Any:
    """The configuration object of transformers for the model that a parsed config.json describes.
    For a model of text and images it is that of the whole, unless config.json names a class of the
    text part alone. The plan says whether the model makes a cache.

    Raises ModelError if the installed transformers does not know the model or does not accept the
    configuration.
    """
    whole = configuration_object(config)
    text = whole.get_text_config()
    for part in (whole, text):
        part.use_cache = plan.loop != "trainer"  # the Trainer uses no cache
    decodes = getattr(text, "is_encoder_decoder", False)
    if decodes and getattr(text, "decoder_start_token_id", None) is None:
        # The decoder reads the labels shifted by one place, after this token.
        text.decoder_start_token_id = text.pad_token_id or 0
    text.architectures = text.architectures or whole.architectures
    return text if _named(text) else whole


def _named(configuration: Any) -> Any:
    """The first class that config.json names and that has this kind of configuration, language
    models before others; None if there is none."""
    names = getattr(configuration, "architectures", None) or ()
    for name in sorted(names, key=lambda name: not name.endswith(LANGUAGE_MODELS)):
        named = getattr(transformers, name, None)
        if getattr(named, "config_class", None) is type(configuration):
            return named
    return None


def class_of(configuration: Any) -> Any:
    """The class that the config.json names. Without one, the class of the family that has a loss:
    for the next token, for masked tokens, or from sequence to sequence.

    Raises ModelError if the family has no such class, and for a class whose labels are not known
    here.
    """
    names = getattr(configuration, "architectures", None) or ()
    named, why_not = _named(configuration), ""
    if named is not None and is_traceable(named.__name__):
        return named
    if named is not None:
        why_not = f"{named.__name__}, and a trace cannot tell what that reads in a step"
    elif names and not any(name.endswith(LANGUAGE_MODELS) for name in names):
        why_not = (
            f"{names[0]}, which is no class of the installed transformers "
            f"{transformers.__version__} for {configuration.model_type!r}"
        )
    if why_not:
        raise ModelError(f"config.json names {why_not}; name another under architectures.")
    kind, heads = type(configuration), list(_HEADS)
    if getattr(configuration, "is_decoder", False):
        heads = [auto.MODEL_FOR_CAUSAL_LM_MAPPING]
    elif kind in auto.MODEL_FOR_MASKED_LM_MAPPING:  # BERT has a causal class too, for is_decoder
        # By identity: mappings that are read on demand are all equal.
        heads = [head for head in heads if head is not auto.MODEL_FOR_CAUSAL_LM_MAPPING]
    for mapping in heads:
        if kind in mapping:
            return mapping[kind]
    raise ModelError(
        f"The installed transformers has no class with a language-model head for "
        f"{configuration.model_type!r}, so there is no loss to train by."
    )


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_HALF = (torch.float16, torch.bfloat16)


@dataclass(eq=False)
class Built:
    """A model that is being prepared for training.

    Attributes:
        model: the class of transformers, or peft's wrapper around it after `prepare`.
        configuration: of transformers.
        stacks: its stacks of layers.
        folds: how the stacks were shortened, if they were.
    """

    model: Any
    configuration: Any
    stacks: list[Stack]
    folds: tuple[Fold, ...] = ()

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of everything that stays through a step: parameters, buffers, quantization
        constants."""
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()
        yield from quantized_tensors(self.model)


def load(
    config: Mapping[str, Any],
    plan: RunPlan,
    device: torch.device | str,
    margin: int | None = None,
) -> Built:
    """The base model with its weights as they are stored, quantized if the plan says so.

    Args:
        config: the parsed config.json.
        plan: a resolved plan.
        device: where the tensors are created.
        margin: None builds every layer. A number builds only a few of the layers that are alike,
            with `margin` layers on either side of those that represent the others.

    Raises ModelError for a configuration that transformers cannot build.
    """
    configuration = configuration_of(config, plan)
    if plan.batch > 1 and getattr(configuration, "pad_token_id", None) is None:
        # Classes that label sequences search for the last token that is not padding. This costs the
        # same whichever token is the padding.
        configuration.pad_token_id = 0
    model_class = class_of(configuration)
    how, dtype = attention_of(plan, model_class), DTYPES[plan.dtype or "fp32"]
    with torch.device(device):
        model = model_class._from_config(configuration, attn_implementation=how, dtype=dtype)
    folds = () if margin is None else fold_layers(model, configuration, margin)
    if plan.quantized:
        quantize_linears(model, plan, device)
    return Built(model, configuration, stacks_of(model), folds)


def prepare(built: Built, plan: RunPlan) -> None:
    """Prepares a loaded model for training: k-bit preparation, adapters, checkpointing."""
    prepare_base(built, plan)
    add_adapters(built, plan)


def prepare_base(built: Built, plan: RunPlan) -> None:
    """Prepares the base: its loss, k-bit preparation, and which parameters are frozen."""
    import peft

    model = built.model
    set_loss(model, plan)
    if plan.kbit_prep == "all":
        model = peft.prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=bool(plan.checkpointing),
            gradient_checkpointing_kwargs={"use_reentrant": plan.reentrant},
        )
    elif plan.adapts:
        model.requires_grad_(False)
    if plan.kbit_prep == "norms":
        _norms_to_float32(model)
    built.model = model.train(plan.trains)


def add_adapters(built: Built, plan: RunPlan) -> None:
    """Adds the plan's adapters, if any, to a prepared base and turns on checkpointing."""
    import peft

    model = built.model
    if plan.adapts:
        model = peft.get_peft_model(
            model, _adapters(model, plan), autocast_adapter_dtype=plan.adapter_dtype == "fp32"
        )
        dtype = DTYPES[plan.adapter_dtype or "fp32"]
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.dtype != dtype:
                parameter.data = parameter.data.to(dtype)
    if plan.checkpointing and not model.is_gradient_checkpointing:
        again = {"use_reentrant": plan.reentrant}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=again)
    built.model = model.train(plan.trains)


def autocast_of(plan: RunPlan, device_type: str) -> AbstractContextManager[Any]:
    """The context of a plan's forward passes."""
    if not plan.autocast:
        return nullcontext()
    return torch.autocast(device_type, dtype=DTYPES[plan.autocast_dtype])


def attention_of(plan: RunPlan, model_class: Any) -> str:
    """The name that transformers has for the attention of a plan. Some families have only eager
    attention and run it whatever the plan says."""
    supported = getattr(model_class, "_supports_sdpa", True)
    return "sdpa" if plan.attention != "eager" and supported else "eager"


def _adapters(model: Any, plan: RunPlan) -> Any:
    import peft

    name = type(model).__name__
    if not name.endswith(LANGUAGE_MODELS):
        raise UsageError(
            f"peft trains a copy of the head of {name} beside the adapters, which a trace does not "
            "follow; use --method full or inference."
        )
    stacked = [name for name, one in model.named_parameters() if one.dim() == 3]
    experts = [t for t in plan.lora_targets if "." in t and any(n.endswith(t) for n in stacked)]
    targets = [target for target in plan.lora_targets if target not in experts]
    both = bool(getattr(model.config, "is_encoder_decoder", False))
    # Adapters fail around routers whose class is nn.Linear but which return two tensors, such as
    # Llama 4's. What sees images is left out, too.
    sees = {"visual", "vision_tower", "multi_modal_projector", "embed_vision"}
    spared = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and (type(module).__name__.endswith("Router") or not sees.isdisjoint(name.split(".")))
    ]
    return peft.LoraConfig(
        r=plan.lora_rank,
        lora_alpha=2 * plan.lora_rank,
        lora_dropout=plan.lora_dropout,
        target_modules=ALL_LINEAR if targets == [ALL_LINEAR] else targets,
        target_parameters=experts or None,
        exclude_modules=spared,
        task_type="SEQ_2_SEQ_LM" if both else "CAUSAL_LM" if model.can_generate() else None,
    )


def _norms_to_float32(model: nn.Module) -> None:
    """Casts only the norms to float32, as older versions of TRL prepared a quantized model."""
    for name, module in model.named_modules():
        if "norm" in name.rpartition(".")[2] or isinstance(module, nn.LayerNorm):
            for parameter in module.parameters(recurse=False):
                if parameter.dtype in _HALF:
                    parameter.data = parameter.data.to(torch.float32)


def use_liger(model: Any, plan: RunPlan) -> None:
    """Puts Liger's kernels into a model, as the Trainer does (use_liger_kernel), or only Liger's
    loss."""
    if plan.kernels != "liger" and plan.loss != "fused":
        return
    from liger_kernel.transformers import _apply_liger_kernel_to_instance  # type: ignore

    names = ("rope", "rms_norm", "swiglu")
    loss_alone = dict.fromkeys(names, False) | {"fused_linear_cross_entropy": True}
    _apply_liger_kernel_to_instance(model=model, **({} if plan.kernels == "liger" else loss_alone))


@contextmanager
def kernels_of(plan: RunPlan) -> Iterator[None]:
    """A context in which attention runs on the kernel of the plan; with `repeat_kv`, keys and
    values are first copied to all heads."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from transformers.integrations import sdpa_attention

    kernels = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
    with ExitStack() as stack:
        if plan.attention in kernels:
            stack.enter_context(sdpa_kernel(kernels[plan.attention]))
        if plan.repeat_kv:
            never = patch.object(sdpa_attention, "use_gqa_in_sdpa", lambda *_, **__: False)
            stack.enter_context(never)
        yield


def quiet() -> None:
    """Silences the libraries' warnings, which concern training and not memory."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")


def component_of_state(built: Built) -> Callable[[str], Component]:
    """A function that tells the component of a lasting tensor from its name."""
    known = {name: Component.BUFFERS for name, _ in built.model.named_buffers()}
    known |= {name: Component.QUANTIZATION for name, _ in quantized_tensors(built.model)}
    adapters = {True: Component.ADAPTERS, False: Component.WEIGHTS}
    return lambda name: known.get(name, adapters[".lora_" in name])
