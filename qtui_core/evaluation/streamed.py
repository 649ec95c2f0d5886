"""A language model whose weights are in memory only while they are used. Needs torch.

The model is that of transformers. The weights of a layer are loaded when the layer is called, and
dropped afterwards; modules outside of layers (embedding, last norm, head) are loaded one by one.
The values are read from the files each time, so that a model larger than memory can run, and are
changed by the candidate. Everything is computed in float32.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from qtui_core.activations.capture import THREADED_PARAMETERS
from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, QtuiError
from qtui_core.evaluation.changes import StoredWeight, WeightChange
from qtui_core.inspection.sentences import not_finite
from qtui_core.loading.model import LoadedModel, is_linear, map_language_model, spellings
from qtui_core.loading.tokens import Ids
from qtui_core.models import ModelSource, Role, TensorInfo
from qtui_core.models.files.arrays import RowReader
from qtui_core.models.quoting import printable, quoted
from qtui_core.quant import quantize
from qtui_core.quant.elements import ArrayRows
from qtui_core.schemes.scheme import Scheme
from qtui_core.training.model.stacks import stacks_of

#: safetensors' names for dtypes of weights in memory.
_DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
#: How many elements of a weight are compared with those of the tensor with its name.
_COMPARED = 1024


#: The place of a weight in the model: a module, the name of its attribute, and the weight.
_Slot = tuple[Any, str, StoredWeight]
#: Calls a layer: takes a function that loads its weights and runs it, and the arguments of that.
CallLayer = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """The settings of one forward pass.

    Attributes:
        change: of the weights.
        activations: the scheme for the inputs of linear layers whose weight is quantized; None
            leaves them as they are.
        step: called before each unit is loaded. It may raise to cancel the pass.
        layer: calls each layer, or returns what it would return.
        loaded: is told each weight that was loaded, with its parameter.
    """

    change: WeightChange
    activations: Scheme | None = None
    step: Callable[[], None] = lambda: None
    layer: CallLayer = lambda run, args, kwargs: run(*args, **kwargs)
    loaded: Callable[[StoredWeight, nn.Parameter], None] = lambda weight, parameter: None


class StreamedModel:
    """A causal language model without weights, which are read while it runs.

    Attributes:
        loaded: the model.
        weights: reads the values of its parameters.
        unnamed: names of parameters that transformers made of several tensors of the checkpoint.
            They stay in memory.
        units: how many times weights are loaded in a pass.
    """

    def __init__(self, source: ModelSource, device: str) -> None:
        """Raises ModelError for a model that cannot be run here."""
        self.loaded: LoadedModel = map_language_model(source)
        self._model = self.loaded.model
        self._device = torch.device(device)
        self._pass: ForwardPass | None = None
        self._broken = ""  # the first weight that was read with a value that is not finite
        weights = _weights_of(source, self._model)
        self.weights = tuple(weights.values())
        self.unnamed = tuple(w.info.name for w in self.weights if isinstance(w.rows, ArrayRows))
        for module in self._model.modules():
            if is_linear(module):
                hook = self._rounding(weights[id(module.weight)])
                module.register_forward_pre_hook(hook, with_kwargs=True)
        self.units = 0
        for unit, parts in list(_units(self._model)):
            self.units += 1
            self._stream(unit, list(_slots(parts, weights)), is_layer=len(parts) > 1)
        _settle_buffers(source, self._model, self._device)
        if source.parameters < THREADED_PARAMETERS:
            torch.set_num_threads(1)

    def logits(self, ids: Ids, scored: int, how: ForwardPass) -> torch.Tensor:
        """The logits that predict the last `scored` tokens of each window: float32 `[windows,
        scored, vocabulary]` on the device.

        Args:
            ids: int64 `[windows, length]`.

        Raises what `how.step` raises, and QtuiError if the forward pass fails.
        """
        with torch.inference_mode(), self.running(how):
            return self.forward(ids, scored)

    @contextmanager
    def running(self, how: ForwardPass) -> Iterator[None]:
        """Within it, weights are loaded as `how` says. Errors of the model's code are raised as
        QtuiError."""
        self._pass = how
        try:
            yield
        except (QtuiError, MemoryError):
            raise
        except Exception as error:  # a model's code may raise anything
            raise self._refusal(error) from error
        finally:
            self._pass = None

    def forward(self, ids: Ids, scored: int) -> torch.Tensor:
        """As `logits`, inside of `running`."""
        keeps = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        settings: dict[str, Any] = {"logits_to_keep": scored + 1} if keeps else {}
        if hasattr(self._model.config, "use_cache"):
            settings["use_cache"] = False
        given = torch.from_numpy(ids).to(self._device)
        logits = self._model(input_ids=given, **settings).logits
        return logits[:, -scored - 1 : -1].float()

    def refuse_broken(self, logits: torch.Tensor) -> None:
        """Raises ModelError if there are logits of the original, `[..., vocabulary]`, of which none
        is finite."""
        if broken := int((~logits.isfinite().any(-1)).sum()) * logits.shape[-1]:
            why = (
                f"which {quoted(self._broken)} has too" if self._broken else "as a layer overflows"
            )
            where = f"among the logits of {quoted(self.loaded.source.id)} itself ({why})"
            raise ModelError(f"{not_finite(broken, where)}.")

    def _refusal(self, error: Exception) -> QtuiError:
        name = quoted(self.loaded.source.id)
        if isinstance(error, torch.OutOfMemoryError):
            return QtuiError(
                f"The GPU ran out of memory while {name} ran: take a shorter --window, or --device "
                f"cpu."
            )
        said = printable(str(error).strip().partition("\n")[0])[:200]
        return QtuiError(f"The forward pass of {name} failed ({type(error).__name__}: {said}).")

    def _stream(self, unit: nn.Module, slots: list[_Slot], *, is_layer: bool) -> None:
        """Lets each call of the unit load the weights of `slots`, and drop them afterwards."""
        # NaN, so that a weight that is used without being loaded shows in the logits.
        nothing = torch.full((), math.nan, device=self._device)
        empty = [nothing.expand(weight.info.shape) for _, _, weight in slots]
        forward = unit.forward

        def drop() -> None:
            for (module, name, _), placeholder in zip(slots, empty, strict=True):
                setattr(module, name, nn.Parameter(placeholder, requires_grad=False))

        def run(*args: Any, **kwargs: Any) -> Any:
            assert self._pass is not None
            self._pass.step()
            try:
                for module, name, weight in slots:
                    value = torch.from_numpy(self._pass.change.values(weight))
                    if not (self._broken or torch.isfinite(value.sum()) or value.isfinite().all()):
                        self._broken = weight.info.name
                    moved = nn.Parameter(value.to(self._device), requires_grad=False)
                    setattr(module, name, moved)
                    self._pass.loaded(weight, moved)
                return forward(*args, **kwargs)
            finally:
                drop()

        def call(*args: Any, **kwargs: Any) -> Any:
            assert self._pass is not None
            return self._pass.layer(run, args, kwargs) if is_layer else run(*args, **kwargs)

        drop()
        # In place of hooks, so that `ForwardPass.layer` may leave a layer out.
        unit.forward = call

    def _rounding(self, weight: StoredWeight) -> Callable[..., Any]:
        """A hook that quantizes the inputs of the layer with this weight, if the pass does."""

        def hook(module: Any, args: Any, kwargs: Any) -> Any:
            how = self._pass
            if how is None or how.activations is None or not how.change.changes_inputs(weight):
                return None
            if args:
                return (_rounded(args[0], how.activations), *args[1:]), kwargs
            name, value = next(iter(kwargs.items()))
            return args, {**kwargs, name: _rounded(value, how.activations)}

        return hook


def _rounded(x: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """`x` `[windows, tokens, features]` or `[tokens, features]`, quantized for each window
    separately, as if the model read one window at a time."""
    parts = x if x.dim() == 3 else x.reshape(1, -1, x.shape[-1])
    rounded = np.empty(parts.shape, np.float32)
    for part, out in zip(parts, rounded, strict=True):
        quantize(np.ascontiguousarray(part.cpu().numpy()), scheme).dequantize(out=out)
    return torch.from_numpy(rounded).to(x.device).reshape(x.shape)


def _weights_of(source: ModelSource, model: Any) -> dict[int, StoredWeight]:
    """The weight of each parameter, by the parameter's id. Tied parameters share one."""
    names: dict[int, list[str]] = {}
    parameters = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        parameters[id(parameter)] = parameter.detach()
    return {
        key: _weight_of(source, [s for name in names[key] for s in spellings(model, name)], value)
        for key, value in parameters.items()
    }


def _weight_of(source: ModelSource, names: list[str], value: torch.Tensor) -> StoredWeight:
    for name in names:
        info = source.tensors.get(name)
        if info is not None and info.shape == tuple(value.shape) and _is_same(source, info, value):
            return StoredWeight(info, RowReader(source, name))
    dtype, shape, nbytes = _DTYPES[value.dtype], tuple(value.shape), value.nbytes
    info = TensorInfo(names[0], dtype, shape, value.numel(), nbytes, "", 0, nbytes, True)
    return StoredWeight(info, ArrayRows(value.reshape(info.matrix)))


def _is_same(source: ModelSource, info: TensorInfo, value: torch.Tensor) -> bool:
    """Whether a tensor and a parameter begin with the same values. When loading, transformers
    changes the layout of some tensors without changing their shape."""
    if info.role is not Role.VALUES or not info.readable:
        return False
    if not info.elements:
        return True
    reader = RowReader(source, info.name)
    stored = reader.rows(0, min(reader.shape[0], -(-_COMPARED // reader.shape[1])))
    first = torch.from_numpy(stored).reshape(-1).to(value.dtype)
    return torch.equal(first.nan_to_num(), value.reshape(-1)[: first.numel()].nan_to_num())


def _units(model: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Module]]]:
    """(a unit whose weights are loaded together, the modules with these weights): each layer with
    all its modules; outside of layers, each module with parameters of its own."""
    layers = [layer for stack in stacks_of(model) for layer in stack.layers]
    inside = {id(module) for layer in layers for module in layer.modules()}
    yield from ((layer, list(layer.modules())) for layer in layers)
    for module in model.modules():
        if id(module) not in inside and any(p is not None for p in module._parameters.values()):
            yield module, [module]


def _slots(modules: list[nn.Module], weights: Mapping[int, StoredWeight]) -> Iterator[_Slot]:
    for module in modules:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield module, name, weights[id(parameter)]


def _settle_buffers(source: ModelSource, model: Any, device: torch.device) -> None:
    """Moves buffers to the device, floating-point ones as float32. Stored buffers are read again,
    because loading rounds them to the dtype of the model."""
    for name, buffer in list(model.named_buffers()):
        value = buffer.float() if buffer.is_floating_point() else buffer
        stored = next((s for s in spellings(model, name) if s in source.tensors), None)
        if stored is not None and buffer.is_floating_point():
            reader = RowReader(source, stored)
            rows = torch.from_numpy(reader.rows(0, reader.shape[0]))
            value = rows.reshape(buffer.shape) if rows.numel() == buffer.numel() else value
        path, _, last = name.rpartition(".")
        model.get_submodule(path)._buffers[last] = value.to(device)
