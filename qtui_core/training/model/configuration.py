"""From a config.json to the class of transformers that it describes. Requires transformers.

Only classes of the installed transformers are used, never code that comes with a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)

from qtui_core.errors import ModelError
from qtui_core.loading.model import configuration_object
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.shape.from_config import LANGUAGE_MODELS, is_traceable

_HEADS = (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
)


def configuration_of(config: Mapping[str, Any], plan: RunPlan) -> Any:
    """The configuration object of transformers for the model that a parsed config.json describes.
    For a model of text and images it is that of the whole, unless config.json names a class of the
    text part alone. The plan says whether the model makes a cache.

    Raises ModelError if the installed transformers does not know the model or does not accept the
    configuration.
    """
    built = configuration_object(config)
    text = built.get_text_config()
    for part in (built, text):
        part.use_cache = plan.loop != "trainer"  # the Trainer uses no cache
    decodes = getattr(text, "is_encoder_decoder", False)
    if decodes and getattr(text, "decoder_start_token_id", None) is None:
        # The decoder reads the labels shifted by one place, after this token.
        text.decoder_start_token_id = text.pad_token_id or 0
    text.architectures = text.architectures or built.architectures
    return text if _named(text) else built


def _named(configuration: Any) -> Any:
    """The first class that config.json names and that has this kind of configuration, language
    models before others; None if there is none."""
    names = getattr(configuration, "architectures", None) or ()
    for name in sorted(names, key=lambda name: not name.endswith(LANGUAGE_MODELS)):
        found = getattr(transformers, name, None)
        if getattr(found, "config_class", None) is type(configuration):
            return found
    return None


def class_of(configuration: Any) -> Any:
    """The class that the config.json names. Without one, the class of the family that has a loss:
    for the next token, for masked tokens, or from sequence to sequence.

    Raises ModelError if the family has no such class, and for a class whose labels are not known
    here.
    """
    named = getattr(configuration, "architectures", None) or ()
    if (found := _named(configuration)) is not None:
        if is_traceable(found.__name__):
            return found
        raise ModelError(
            f"config.json names {found.__name__}, and a trace cannot tell what that reads in a "
            "step; name another class under architectures."
        )
    if named and not any(name.endswith(LANGUAGE_MODELS) for name in named):
        raise ModelError(
            f"config.json names {named[0]}, which is no class of the installed transformers "
            f"{transformers.__version__} for {configuration.model_type!r}; name another under "
            "architectures."
        )
    decoder = bool(getattr(configuration, "is_decoder", False))
    for mapping in _HEADS if not decoder else (MODEL_FOR_CAUSAL_LM_MAPPING,):
        if type(configuration) in mapping:
            if (
                mapping is MODEL_FOR_CAUSAL_LM_MAPPING
                and not decoder
                and type(configuration) in MODEL_FOR_MASKED_LM_MAPPING
            ):
                continue  # BERT has a causal class too, for is_decoder
            return mapping[type(configuration)]
    raise ModelError(
        f"The installed transformers has no class with a language-model head for "
        f"{configuration.model_type!r}, so there is no loss to train by."
    )
