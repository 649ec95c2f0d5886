"""Finds the family of a config.json and makes the shape of the model.

Built in is the language model of a family: its head predicts the next token or, of an encoder, the
masked ones. A class with another head has another step and other parameters; of those that
config.json names under architectures, --trace runs the ones whose inputs are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from qtui_core.errors import UsageError
from qtui_core.memory.shape.config_reader import Config, UnknownFamily
from qtui_core.memory.shape.families.decoders import DECODERS
from qtui_core.memory.shape.families.gpt import GPTS
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.packed import packed
from qtui_core.memory.shape.packings import packing_of
from qtui_core.models.tensors import DESCRIBED_IN

#: Endings of the names of language models.
LANGUAGE_MODELS: Final = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
#: Endings of the names of classes that classify sequences, classify tokens, and find the span of an
#: answer.
SEQUENCES: Final = "ForSequenceClassification"
TOKENS: Final = "ForTokenClassification"
ANSWERS: Final = "ForQuestionAnswering"
#: Classes that tell whether one sentence follows another: alone, and together with masked tokens.
NEXT_SENTENCES: Final = "ForNextSentencePrediction"
PRETRAINING: Final = "ForPreTraining"
#: Endings of the names of classes whose inputs --trace knows.
_TRACEABLE: Final = (*LANGUAGE_MODELS, SEQUENCES, TOKENS, ANSWERS, NEXT_SENTENCES, PRETRAINING)
#: What --trace cannot run: this class counts end tokens in a sequence, which tensors without values
#: do not allow.
_COUNTS_TOKENS: Final = "T5ForSequenceClassification"


def of_named_class(shape: ModelShape, config: Config) -> ModelShape:
    """The shape of a family's language model, if that is the class that config.json names under
    architectures.

    If config.json names another language model than the one counted, a note says so and the basis
    is no longer exact. Raises UnknownFamily for a class with another head.
    """
    named = config.listed("architectures", str) or ()
    if not named or shape.architecture in named:
        return shape
    name, title = named[0], shape.architecture
    for end in LANGUAGE_MODELS:
        title = title.removesuffix(end)
    # BERT and RoBERTa as decoders, with the same head, see earlier tokens only.
    decodes = shape.is_encoder and name.startswith(title)
    if decodes or not name.endswith(LANGUAGE_MODELS):
        raise UnknownFamily(
            f"config.json names {name}, whose shape is not built in; that of {shape.architecture} "
            "is, but it would be another model."
        )
    if config.within("text_config") is not None:  # its note says that only the text part is counted
        return shape
    note = (
        f"config.json names {name}; what is counted is {shape.architecture}, so nothing that "
        "follows from it is exact."
    )
    return replace(shape, known="derived", notes=(note, *shape.notes))


def is_body(name: str) -> bool:
    """Whether a class of transformers has no head, and with it no loss."""
    return name.endswith("Model") and not name.endswith(("HeadModel", "HeadsModel", "DecoderModel"))


def is_traceable(name: str) -> bool:
    """Whether --trace knows the inputs of a class: for a step, or for an inference of a body."""
    return (is_body(name) or name.endswith(_TRACEABLE)) and name != _COUNTS_TOKENS


#: model_type of config.json -> what makes the shape.
FAMILIES: Final = DECODERS | GPTS


def shape_from_config(config: object) -> ModelShape:
    """The shape of the model that a parsed config.json describes.

    Raises:
        UnknownFamily: a family that is not built in.
        UsageError: a configuration that lacks what is needed or contradicts itself.
    """
    if not isinstance(config, Mapping):
        raise UsageError(
            f"A config.json is an object in braces; this one is {type(config).__name__}."
        )
    reader = Config(config, str(config.get(DESCRIBED_IN) or "config.json"))
    family = reader.text("model_type", "")
    if family not in FAMILIES:
        raise _unknown(reader, family)
    shape = of_named_class(FAMILIES[family](reader), reader)
    if reader.where != "config.json":
        shape = replace(shape, described_in=reader.where)
    packing = packing_of(config)
    return shape if packing is None else packed(shape, packing)


def families() -> tuple[str, ...]:
    """The model types that have a shape, in alphabetical order."""
    return tuple(sorted(FAMILIES))


def _unknown(config: Config, family: str) -> UnknownFamily:
    if not family:
        return UnknownFamily(
            "config.json does not say model_type, so the family of the model is unknown. Take the "
            "config.json that belongs to the weights."
        )
    if config.values.get("auto_map"):
        return UnknownFamily(
            f"Models of type {family!r} bring their own code, which is never executed here, and no "
            "shape of them is built in."
        )
    return UnknownFamily(f"No shape of models of type {family!r} is built in.")
