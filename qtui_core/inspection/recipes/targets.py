"""The tools that `--export` writes for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.extras import require
from qtui_core.inspection.recipes.llama_cpp import has_gguf_name, llama_quantize
from qtui_core.inspection.recipes.modules import bitsandbytes, llm_compressor, torchao, vllm
from qtui_core.inspection.recipes.recipe import RecipeTensor, ToolRecipe
from qtui_core.models.quoting import quoted


@dataclass(frozen=True)
class RecipeTarget:
    """A tool.

    Attributes:
        name, suffix: of the tool and of its file.
        make: the recipe for tensors and the model_type of the config.
        library: what making it takes.
        of_gguf: whether it takes models by the names of GGUF. Others know those of transformers.
    """

    name: str
    suffix: str
    make: Callable[[Sequence[RecipeTensor], str | None], ToolRecipe]
    library: str = ""
    of_gguf: bool = False

    def check(self) -> None:
        """Raises MissingLibrary without the library."""
        if self.library:
            require(f"--export {self.name}", self.library)

    def refuse_names(self, names: Iterable[str]) -> None:
        """Raises UsageError for tensors with the names of a GGUF file, if the tool has no use for
        these."""
        if not self.of_gguf and any(map(has_gguf_name, names)):
            raise UsageError(
                f"--export {self.name} needs the names that modules have in transformers, and this "
                f"model has those of GGUF: name the checkpoint that it was converted from."
            )

    def recipe(
        self, tensors: Sequence[RecipeTensor], config: Mapping[str, Any] | None
    ) -> ToolRecipe:
        """The recipe for the tensors of a model with this config.json."""
        model_type = (config or {}).get("model_type")
        return self.make(tensors, model_type if isinstance(model_type, str) else None)


TARGETS: Final = {
    target.name: target
    for target in (
        RecipeTarget("llama-quantize", ".txt", llama_quantize, "gguf", True),
        RecipeTarget("llm-compressor", ".yaml", lambda tensors, _: llm_compressor(tensors)),
        RecipeTarget("torchao", ".json", lambda tensors, _: torchao(tensors)),
        RecipeTarget("bitsandbytes", ".json", lambda tensors, _: bitsandbytes(tensors)),
        RecipeTarget("vllm", ".json", lambda tensors, _: vllm(tensors)),
    )
}


def target_of_export(text: str) -> tuple[RecipeTarget, str]:
    """The tool and the file of `TOOL` or `TOOL=FILE`; without a file it is named after the tool.

    Raises UsageError for an unknown tool.
    """
    name, _, file = text.partition("=")
    target = TARGETS.get(name.strip().lower())
    if target is None:
        raise UsageError(
            f"{quoted(name)} is no tool to export for: choose one of {', '.join(TARGETS)}, or "
            f"write TOOL=FILE."
        )
    return target, file or f"{target.name}{target.suffix}"
