"""Other tools' estimates for the measured rows, if they are installed.

accelerate's estimate-memory takes only a model: its figure is "Training using Adam" in 16 bits for
full fine-tuning, and for adapters, which it does not know, the size of the weights in 16 or 4 bits;
it has no batch and no sequence. fitcheck-llm takes the run and estimates two levels: tensors, and
the process. Its constants for the T4 are fitted to most of the T4 rows here.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measured_rows import MEASURED, MIB, MeasuredRow


def accelerate_bytes(row: MeasuredRow) -> int | None:
    """accelerate's figure for the row's model; None if accelerate is not installed."""
    if find_spec("accelerate") is None or find_spec("transformers") is None:
        return None
    total = _size_in_float32(row.model.rpartition("/")[2])
    if row.plan.method == "full":
        from accelerate.commands.estimate import estimate_training_usage

        return int(max(estimate_training_usage(total, "float16").values()))
    return total // (8 if row.plan.method == "qlora" else 2)


@cache
def _size_in_float32(name: str) -> int:
    from accelerate import init_empty_weights
    from accelerate.utils import calculate_maximum_sizes
    from transformers import AutoConfig, AutoModel

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text((MEASURED / f"{name}.json").read_text())
        config = AutoConfig.from_pretrained(folder)
    with init_empty_weights():
        model = AutoModel.from_config(config, dtype="float32")
    total, _ = calculate_maximum_sizes(model)
    return int(total)


def fitcheck_bytes(row: MeasuredRow) -> tuple[int, int] | None:
    """(tensors, process) from fitcheck-llm; None if it is not installed or refuses the plan."""
    if find_spec("fitcheck") is None:
        return None
    from fitcheck import estimator
    from fitcheck.gpu_db import get_gpu

    plan = row.plan
    adapted = plan.method != "full"
    training = estimator.TrainingConfig(
        precision=plan.dtype,
        quantization="nf4" if plan.quant else "none",
        double_quant=bool(plan.quant and plan.quant.endswith("-dq")),
        batch_size=plan.batch,
        seq_len=plan.sequence,
        lora_rank=plan.lora_rank if adapted else None,
        lora_targets=list(plan.lora_targets),
        grad_checkpoint=True,
        flash_attn=plan.attention != "eager",
        optimizer_dtype="fp32" if adapted else "bf16",
    )
    gpu = get_gpu("t4" if row.device.name == "T4" else "a100-80")
    report = estimator.estimate(_fitcheck_model(row.model), training, gpu)
    return round((report.total_mib - report.overhead_mib) * MIB), round(report.total_mib * MIB)


@cache
def _fitcheck_model(model: str) -> Any:
    from fitcheck import config_parser

    name = model.rpartition("/")[2]
    fields = config_parser._parse_fields(json.loads((MEASURED / f"{name}.json").read_text()))
    return config_parser.ModelConfig(
        name=name, num_params=config_parser._count_params(fields), **_shared(fields)
    )


def _shared(fields: Any) -> dict[str, Any]:
    names = (
        "hidden_size num_layers num_attention_heads num_kv_heads intermediate_size vocab_size "
        "head_dim tie_word_embeddings"
    )
    return {name: getattr(fields, name) for name in names.split()}


#: A function from a row to figures at the allocated level and at that of the process.
Figures = Callable[[MeasuredRow], tuple[int | None, int | None]]


def _accelerate(row: MeasuredRow) -> tuple[int | None, int | None]:
    return accelerate_bytes(row), None


def _fitcheck(row: MeasuredRow) -> tuple[int | None, int | None]:
    return fitcheck_bytes(row) or (None, None)


OTHERS: tuple[tuple[str, Figures], ...] = (("accelerate", _accelerate), ("fitcheck", _fitcheck))
