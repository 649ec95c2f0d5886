"""Makes a transformers model that runs here from a ModelSource. Needs torch and transformers.

Uses only files on this machine, and never code that came with a model.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING
from transformers.utils import logging

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.models.files.local import LocalFile
from qtui_core.models.quoting import listed, printable, quoted
from qtui_core.models.source import ModelSource
from qtui_core.telemetry.machine import read_machine

#: Stored dtypes in which a forward pass runs.
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_CAUSAL = ("ForCausalLM", "LMHeadModel")
#: Classes with heads that are left off: activations are captured in the model below the head.
_BASE = ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification",
         "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")  # fmt: skip

#: A configuration with more layers per stored tensor than this is refused, also where layers share
#: tensors.
_LAYERS_A_TENSOR = 10
#: A configuration with more than this many times the stored parameters is that of another model.
#: Tied weights and shared layers account for a few times.
_FAR_LARGER = 16
#: Configuration keys that can select code to download: an implementation may be the name of a
#: repository of compiled kernels.
_CODE_KEYS = frozenset(
    ("auto_map", "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
     "experts_implementation", "_experts_implementation", "_experts_implementation_internal")
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in evaluation mode, on the CPU.

    Attributes:
        source: where it came from.
        model: the transformers model.
        folder: the folder with its files, including the tokenizer.
    """

    source: ModelSource
    model: Any
    folder: Path

    @property
    def dtype(self) -> str:
        """The dtype it computes in: "bfloat16"."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def vocabulary(self) -> int:
        """The number of tokens in its embedding."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def module_of(self, tensor: str) -> str:
        """The linear module whose weight a tensor of the checkpoint is.

        Raises:
            ModelError: the source has no such tensor.
            UsageError: it is not the weight of a linear module; the sentence says what it is.
        """
        info = self.source.tensor(tensor)
        modules = dict(self.model.named_modules())
        names = spellings(self.model, tensor.removesuffix(".weight"))
        path = next((name for name in names if name in modules), None)
        if path is None or not tensor.endswith(".weight") or not is_linear(modules[path]):
            kind = type(self.model if path is None else modules[path]).__name__
            raise UsageError(
                f"{printable(tensor)} belongs to a {kind}; activations are captured at linear "
                f"layers, which multiply by a matrix."
            )
        shape = tuple(modules[path].weight.shape)
        if shape != info.shape:
            raise UsageError(
                f"{printable(tensor)} is {info.shape} in the checkpoint and {shape} in the model "
                f"that runs."
            )
        return path


def is_linear(module: Any) -> bool:
    """Whether a module multiplies by its weight matrix: nn.Linear, or GPT-2's Conv1D, whose weight
    is transposed."""
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"


def load_model(source: ModelSource) -> LoadedModel:
    """The model of a source. Weights keep their stored dtype and are mapped rather than copied,
    unless transformers needs another layout.

    Raises ModelError, which says why, for a model that cannot be run here.
    """
    check_plain(source, "Activations are captured from")
    config = configuration_object(source.config or {})
    model_class = _class_of(source, config)
    check_memory(source)
    return _loaded(source, model_class, config)


def map_language_model(source: ModelSource) -> LoadedModel:
    """The causal language model of a source, with its head. Its weights are mapped as in
    `load_model`; if all are stored under the names of the parameters, nothing is read, so a model
    larger than memory can be mapped.

    Raises ModelError for one that does not predict the next token, or cannot be run here.
    """
    source.require_weights()
    if source.quantization is not None:
        raise ModelError(
            f"{source.quantization.detail.rstrip('.')}. An evaluation begins with the model it was "
            f"made from: qtui eval ORIGINAL --against {printable(source.id)}."
        )
    check_plain(source, "An evaluation is of")
    config = configuration_object(source.config or {})
    if source.location.endswith(".gguf"):
        raise ModelError(
            f"{quoted(source.id)} is a GGUF file, whose tensors have other names than the modules "
            f"of transformers: open the checkpoint that it was converted from."
        )
    if not _is_causal(source, config):
        raise ModelError(
            f"{quoted(source.id)} is a {source.architecture}, which has no head that predicts the "
            f"next token: an evaluation is of causal language models (…ForCausalLM)."
        )
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if not has_own_names(source, model_class, config):
        check_memory(source)
    return _loaded(source, model_class, config)


def _loaded(source: ModelSource, model_class: Any, config: Any) -> LoadedModel:
    model = with_weights(source, model_class, config, _DTYPES[_main_dtype(source)])
    return LoadedModel(source, model.eval(), folder_of(source))


def with_weights(
    source: ModelSource, model_class: Any, config: Any, dtype: torch.dtype, **settings: Any
) -> Any:
    """An instance of a class with the weights of a source, on the CPU. They are mapped rather than
    copied if `dtype` is the stored one. `settings` are further arguments of `from_pretrained`.

    Raises ModelError for weights that do not belong to the class, and for missing ones.
    """
    logging.disable_progress_bar()
    try:
        check_belonging(source, model_class, config)
        model, info = model_class.from_pretrained(
            None,
            config=config,
            state_dict=_tensors(source),
            dtype=dtype,
            output_loading_info=True,
            local_files_only=True,
            **settings,
        )
    except ModelError:
        raise
    except Exception as error:  # a configuration can make a constructor raise anything
        why = differing_shapes(source, model_class, config) or _first_line(error)
        raise ModelError(
            f"transformers cannot build {quoted(source.id)} as {model_class.__name__}: {why}"
        ) from error
    absent = sorted(name for name in info["missing_keys"] if "pooler." not in name)
    if absent:
        raise ModelError(
            f"{quoted(source.id)} lacks {len(absent):,} of the tensors of "
            f"{model_class.__name__} ({listed(absent)}); run with random numbers in their "
            f"place it would show nothing."
        )
    return model


def folder_of(source: ModelSource) -> Path:
    """The folder with a source's files. Raises ModelError if they are on the hub."""
    paths = [file.path for file in source.files.values() if isinstance(file, LocalFile)]
    if len(paths) < len(source.files):
        raise ModelError(
            f"Only the headers of {quoted(source.id)} are on this machine, and a model that runs "
            f"needs all its weights: download it, then open the folder or the id again."
        )
    return paths[0].parent


def check_plain(source: ModelSource, purpose: str) -> None:
    """Raises ModelError unless all weights of a source are on this machine, as plain numbers in a
    dtype that a forward pass runs in. `purpose` is the beginning of a sentence that ends in "models
    whose weights are plain numbers"."""
    source.require_weights()
    if source.quantization is not None:
        raise ModelError(
            f"{source.quantization.detail.rstrip('.')}. {purpose} models whose weights are plain "
            f"numbers; open the model it was made from."
        )
    folder_of(source)
    if source.config is None:
        raise ModelError(
            f"{quoted(source.id)} has no config.json beside it, so it is unknown which "
            f"layers its tensors belong to."
        )
    dtype = _main_dtype(source)
    if dtype not in _DTYPES:
        raise ModelError(
            f"{quoted(source.id)} is stored as {dtype}, which no forward pass runs in; "
            f"{', '.join(_DTYPES)} do."
        )


def _main_dtype(source: ModelSource) -> str:
    """The dtype in which most bytes of the weights are stored."""
    return next(iter(source.dtypes))


def configuration_object(config: Mapping[str, Any]) -> Any:
    """The configuration object of transformers that a parsed config.json describes, without what
    could select code to download.

    Raises ModelError if the installed transformers does not know the model or does not accept the
    configuration.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError("The config.json names no model_type, so its class is unknown.")
    if kind not in CONFIG_MAPPING:
        own = "; it asks for code of its own, which is never run" * ("auto_map" in config)
        raise ModelError(
            f"The installed transformers {transformers.__version__} knows no model of type "
            f"{quoted(kind)}{own}."
        )
    try:
        return CONFIG_MAPPING[kind].from_dict(without_code(config))
    except Exception as error:  # a configuration can make a constructor raise anything
        raise ModelError(
            f"transformers does not accept this config.json: {_first_line(error)}"
        ) from error


def without_code(value: Any) -> Any:
    """A configuration without the keys that could select code to download and run."""
    if isinstance(value, Mapping):
        return {k: without_code(v) for k, v in value.items() if k not in _CODE_KEYS}
    if isinstance(value, list):
        return [without_code(v) for v in value]
    return value


def _class_of(source: ModelSource, config: Any) -> Any:
    """The class of AutoModelForCausalLM for models that generate text, of AutoModel for
    encoders."""
    if _is_causal(source, config):
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    name = source.architecture or ""
    named = "architectures" in (source.config or {})
    if (not named or name.endswith(_BASE)) and type(config) in MODEL_MAPPING:
        base: Any = MODEL_MAPPING[type(config)]
        both = getattr(config, "is_encoder_decoder", False)
        if not both and getattr(base, "main_input_name", None) == "input_ids":
            return base
    raise ModelError(
        f"{quoted(source.id)} is a {name}; activations are captured from text models that are "
        f"causal (…ForCausalLM) or encoders (BertModel, RobertaForMaskedLM and their like)."
    )


def _is_causal(source: ModelSource, config: Any) -> bool:
    """Whether the config.json names a class that predicts the next token."""
    named = "architectures" in (source.config or {})
    ends = (source.architecture or "").endswith(_CAUSAL)
    return named and ends and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


def _tensors(source: ModelSource) -> dict[str, torch.Tensor]:
    """The tensors of a source on private maps of its files: writing to a tensor changes a copy of
    the page in memory, never the file."""
    maps: dict[str, mmap.mmap] = {}
    tensors = {}
    for name, info in source.tensors.items():
        if info.dtype not in _DTYPES or not info.elements:
            continue  # positions and masks in old checkpoints, which models make themselves
        if info.file not in maps:
            maps[info.file] = _map(source.files[info.file])
        flat = torch.frombuffer(
            maps[info.file], dtype=_DTYPES[info.dtype], offset=info.begin, count=info.elements
        )
        tensors[name] = flat.reshape(info.shape)
    return tensors


def _map(file: Any) -> mmap.mmap:
    try:
        with open(file.path, "rb") as stream:
            file.verify(stream.fileno())
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise ModelError(f"{quoted(file.path)} cannot be mapped into memory: {error}.") from error


def check_memory(source: ModelSource) -> None:
    """Raises ModelError if the weights of a source are more than the free memory."""
    free = read_machine().free_memory
    if free is not None and source.nbytes > free:
        raise ModelError(
            f"{quoted(source.id)} has {source.nbytes / 2**30:.1f} GiB of weights and this "
            f"machine {free / 2**30:.1f} GiB of free memory, so it is not run here."
        )


def check_belonging(source: ModelSource, model_class: Any, config: Any) -> None:
    """Refuses the configuration of a far larger model than the tensors, before it takes time and
    memory. Raises ModelError, and whatever the constructor of the model raises."""
    layers, wrong = getattr(config, "num_hidden_layers", None), ""
    if isinstance(layers, int) and layers > _LAYERS_A_TENSOR * len(source.tensors):
        wrong = f"says {layers:,} layers and there are {len(source.tensors):,} tensors"
    else:
        described = sum(p.numel() for p in _empty(model_class, config).parameters())
        if described > _FAR_LARGER * source.parameters + 10**8:
            held = f"its tensors hold {source.parameters:,}"
            wrong = f"describes {described:,} parameters and {held}"
    if wrong:
        what = f"The config.json of {quoted(source.id)}"
        raise ModelError(f"{what} {wrong}: they do not belong together.")


def differing_shapes(source: ModelSource, model_class: Any, config: Any) -> str:
    """Names the first tensor whose shape differs from the configuration; empty if there is none."""
    for shape, stored in _stored_parameters(source, model_class, config).values():
        for info in (source.tensors[name] for name in stored):
            if info.shape != shape:
                said = f"{info.shape} in the checkpoint and {shape} by its config.json"
                return f"{quoted(info.name)} is {said}."
    return ""


def _stored_parameters(
    source: ModelSource, model_class: Any, config: Any
) -> dict[str, tuple[tuple[int, ...], list[str]]]:
    """The shape of each parameter of the class, and the tensors of its name; empty if its
    constructor fails, for which loading has the message."""
    try:
        built = _empty(model_class, config)
    except Exception:
        return {}
    return {
        name: (tuple(p.shape), [s for s in spellings(built, name) if s in source.tensors])
        for name, p in built.named_parameters()
    }


def spellings(model: Any, name: str) -> tuple[str, ...]:
    """The names that a checkpoint may have for a parameter: a base model and a model with a head
    name it with and without a prefix, and transformers 5 calls the head of GPT-NeoX otherwise than
    its checkpoints do."""
    prefix = f"{model.base_model_prefix}."
    head = ("embed_out.weight",) if name == "lm_head.weight" else ()
    return name, prefix + name, name.removeprefix(prefix), *head


def has_own_names(source: ModelSource, model_class: Any, config: Any) -> bool:
    """Whether every parameter of the class is stored as a tensor of its own name and shape. Then
    loading only maps the files. A head that is tied to the embedding need not be stored."""
    parameters = _stored_parameters(source, model_class, config)
    others = [
        name
        for name, (shape, stored) in parameters.items()
        if not any(source.tensors[s].shape == shape for s in stored)
    ]
    tied = bool(getattr(config, "tie_word_embeddings", False))
    return bool(parameters) and (not others or (tied and others == ["lm_head.weight"]))


def _empty(model_class: Any, config: Any) -> Any:
    """The model on the meta device, without memory for its weights."""
    with torch.device("meta"):
        return model_class(config)


def _first_line(error: Exception) -> str:
    if isinstance(error, KeyError):
        return printable(f"it knows no {error}")
    lines = str(error).strip().splitlines() or [type(error).__name__]
    more = 2 if lines[0].endswith(":") else 1
    return printable(" ".join(line.strip() for line in lines[:more]))
