"""The class that config.json names, if it is not the language model of its family: the body alone,
or the body with a head that classifies sequences or tokens.

Parameters are those of transformers 5. The allocations of a step of these classes are not built in,
so their shapes have no `head`; its modules are among `head_modules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from qtui_core.errors import UsageError
from qtui_core.memory.shape.config_reader import LARGEST_COUNT, Config, UnknownFamily
from qtui_core.memory.shape.model_shape import Linear, ModelShape, Module

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
TRACEABLE: Final = (*LANGUAGE_MODELS, SEQUENCES, TOKENS, ANSWERS, NEXT_SENTENCES, PRETRAINING)
#: What --trace cannot run: this class counts end tokens in a sequence, which tensors without values
#: do not allow.
COUNTS_TOKENS: Final = "T5ForSequenceClassification"

#: Families of decoders -> the heads that transformers 5 has for them, besides the body alone.
_DECODERS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gpt2",
         "gpt_neox", "bloom", "falcon"),
        (SEQUENCES, TOKENS, ANSWERS),
    ),
    **dict.fromkeys(
        ("gemma", "gemma2", "phi", "phi3", "stablelm", "gpt_bigcode", "deepseek_v3"),
        (SEQUENCES, TOKENS),
    ),
    **dict.fromkeys(("olmo", "olmo2", "deepseek_v2"), (SEQUENCES,)),
    **dict.fromkeys(("granite", "granitemoe", "cohere", "cohere2"), ()),
    "opt": (SEQUENCES, ANSWERS),
}  # fmt: skip
#: Families whose head for tokens is named classifier, not score.
_CLASSIFIERS: Final = ("gpt2", "gpt_bigcode", "gpt_neox", "bloom", "falcon")
#: Families whose class for answers names its body transformer, unlike their other classes.
_TRANSFORMERS: Final = ("llama", "qwen2", "qwen3", "qwen3_moe")


def of_named_class(shape: ModelShape, config: Config) -> ModelShape:
    """The shape of the class that config.json names under architectures, from that of the family's
    language model.

    If config.json names another language model than the one counted, a note says so and the basis
    is no longer exact. Raises UnknownFamily if the parameters of the class are not built in.
    """
    named = config.words("architectures") or ()
    if not named or shape.architecture in named:
        return shape
    name, title = named[0], shape.architecture
    for end in LANGUAGE_MODELS:
        title = title.removesuffix(end)
    encodes = shape.is_encoder
    if name.endswith(LANGUAGE_MODELS) and not (encodes and name.startswith(title)):
        return _another(shape, name, config)
    found = None
    if name.startswith(title):
        kind = name.removeprefix(title)
        found = _encoder(shape, kind, config) if encodes else _decoder(shape, kind, config)
    if found is None:
        use = "Name another class under architectures in config.json."
        if is_traceable(name):
            use = (
                "Use --trace, which builds the class of transformers without weights and records a "
                "step of it."
            )
        raise UnknownFamily(
            f"config.json names {name}, whose shape is not built in; that of "
            f"{shape.architecture} is, but it would be another model. {use}"
        )
    return replace(found, architecture=name)


def is_traceable(name: str) -> bool:
    """Whether --trace knows the inputs of a class: for a step, or for an inference if it is a body
    alone."""
    body = name.endswith("Model") and not name.endswith("HeadsModel")
    return (body or name.endswith(TRACEABLE)) and name != COUNTS_TOKENS


def _another(shape: ModelShape, name: str, config: Config) -> ModelShape:
    """The shape of a language model with another name in config.json."""
    if config.within("text_config") is not None:  # its note says that only the text part is counted
        return shape
    note = (
        f"config.json names {name}; what is counted is {shape.architecture}, so nothing that "
        "follows from it is exact."
    )
    return replace(shape, known="derived", notes=(note, *shape.notes))


def _decoder(shape: ModelShape, kind: str, config: Config) -> ModelShape | None:
    """The shape of a decoder with this kind of head; None if transformers has no such class."""
    family = shape.family
    if shape.head is None or family not in _DECODERS:
        return None
    if kind == "Model":
        return _with(shape, (), "")
    if kind not in _DECODERS[family]:
        return None
    width = shape.head.inputs
    if kind == SEQUENCES:
        return _with(shape, (Linear("score", width, _labels(config)),))
    if kind == TOKENS:
        own = family in _CLASSIFIERS
        bias = own or config.flag("token_classification_bias", True)
        name = "classifier" if own else "score"
        return _with(shape, (Linear(name, width, _labels(config), bias),))
    answers = (Linear("qa_outputs", width, 2, bias=True),)
    return _with(shape, answers, "transformer." if family in _TRANSFORMERS else None)


def _encoder(shape: ModelShape, kind: str, config: Config) -> ModelShape | None:
    """The shape of BERT or RoBERTa with this kind of head; None if transformers has no such
    class."""
    hidden, body = shape.hidden, _body(shape)

    def linear(name: str, outputs: int = hidden) -> Linear:
        return Linear(name, hidden, outputs, bias=True)

    if kind == "Model":
        return replace(_with(shape, (linear("pooler.dense"),), ""), head_activation="tanh")
    pooler = linear(f"{body}pooler.dense")
    masked = _masked(shape)
    bert = shape.family == "bert"
    heads: dict[str, tuple[Module, ...]] = {
        "ForMultipleChoice": (pooler, linear("classifier", 1)),
        "LMHeadModel" if bert else "ForCausalLM": masked,
    }
    if bert:
        sentences = linear("cls.seq_relationship", 2)
        heads[NEXT_SENTENCES] = (pooler, sentences)
        heads[PRETRAINING] = (pooler, *masked, sentences)
    if kind in (SEQUENCES, TOKENS, ANSWERS):
        labels = _labels(config)
        first: Module = pooler if bert else linear("classifier.dense")
        last = "classifier" if bert else "classifier.out_proj"
        heads[SEQUENCES] = (first, linear(last, labels))
        heads[TOKENS] = (linear("classifier", labels),)
        heads[ANSWERS] = (linear("qa_outputs", labels),)
    return _with(shape, heads[kind]) if kind in heads else None


def _masked(shape: ModelShape) -> tuple[Module, ...]:
    """The modules of the head for masked tokens, with its matrix unless that is tied."""
    own = shape.head if shape.head is not None and not shape.tied else None
    return shape.head_modules if own is None else (*shape.head_modules, own)


def _body(shape: ModelShape) -> str:
    """The prefix of the names of the body's modules."""
    return shape.layer_prefix.partition(".")[0] + "."


def _with(shape: ModelShape, head: tuple[Module, ...], called: str | None = None) -> ModelShape:
    """The body with other modules after it; `called` is the new prefix of its names, if it
    changes."""
    body = _body(shape)

    def name(of: str) -> str:
        return of if called is None else called + of.removeprefix(body)

    after = tuple(module for module in shape.head_modules if module.name.startswith(body))
    norm = shape.final_norm
    return replace(
        shape,
        embeddings=tuple(replace(table, name=name(table.name)) for table in shape.embeddings),
        embedding_modules=tuple(
            replace(module, name=name(module.name)) for module in shape.embedding_modules
        ),
        layer_prefix=name(shape.layer_prefix),
        final_norm=None if norm is None else replace(norm, name=name(norm.name)),
        head=None,
        tied=False,
        head_modules=(*(replace(module, name=name(module.name)) for module in after), *head),
        head_activation="",
        head_bias="",
    )


def _labels(config: Config) -> int:
    """How many labels there are: those that have names, else num_labels, else 2
    (PreTrainedConfig.__post_init__)."""
    names = config.values.get("id2label")
    if names is None:
        return config.optional_size("num_labels", 2, most=LARGEST_COUNT) or 2
    if not isinstance(names, Mapping) or not names:
        raise UsageError(
            f"id2label in {config.where} must be an object that gives each label its name."
        )
    return len(names)
