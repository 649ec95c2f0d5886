"""What is asked for: everything of a run that changes its memory, with defaults."""

from __future__ import annotations

from dataclasses import replace

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.dtypes import FLOATING, dtype_of
from qtui_core.memory.plan.choices import (
    AttentionKernel,
    KbitPrep,
    Kernels,
    Loop,
    Method,
    Optimizer,
    Segments,
    chunk_of,
    parse_loss,
    parse_targets,
    without_logits,
)
from qtui_core.memory.plan.rules import UNPACKED, check, check_against, check_storage
from qtui_core.memory.shape.packings import STORED


@dataclass(frozen=True)
class RunPlan:
    """A run. None means "as usual for the method and the model", which `resolve` fills in.

    Attributes:
        method: full fine-tuning, LoRA, QLoRA, or inference (a prefill with its cache).
        batch, sequence: sequences a micro batch, tokens a sequence.
        dtype: of the model's parameters and activations; None is that of the checkpoint.
        autocast: whether the forward pass runs under torch.autocast to 16 bits (the Trainer's
            bf16=True); `autocast_dtype` says which 16.
        quant: how the frozen weights are stored: nf4, nf4-dq, fp4, fp4-dq, int8; None is not;
            "stored" is as a checkpoint that is quantized has them, and "none" is such a checkpoint
            unpacked while it is loaded.
        quant_storage: the type that 4-bit weights are packed into (bnb_4bit_quant_storage). FSDP
            shards those that are packed into a floating type, and leaves "uint8" whole.
        kbit_prep: which 16-bit parameters that are not quantized become float32: none, norms
            only (older TRL), all (prepare_model_for_kbit_training of peft).
        lora_rank, lora_targets, lora_dropout, adapter_dtype: of the adapters. Targets are names
            of linear modules, or "all-linear".
        optimizer: "adamw" is the one that works on lists of tensors (foreach).
        checkpointing: recompute each layer in the backward pass (not reentrant).
        reentrant: whether checkpoints are of the older kind (use_reentrant=True), as the Trainer of
            transformers 4 has them unless told otherwise.
        kernels: "fused" takes norms, rotations and adapters over 4-bit weights from Unsloth, which
            work in place where they can (fms-acceleration's fused-ops-and-kernels); with them
            weights of norms are not trained; "liger" takes norms, rotations and SwiGLU from Liger
            (the Trainer's use_liger_kernel, which with them takes the "fused" loss).
        attention: "sdpa" lets torch choose, which is flash where it can be; "flash" the package
            flash-attn or that backend; "efficient" the memory-efficient backend (what a T4 or a
            padding mask gets); "eager" the matrix of scores.
        repeat_kv: whether grouped keys and values are copied to all heads before the kernel, as in
            transformers before 4.48: with sdpa in all models, with flash in Mistral, Mixtral,
            Qwen 2 and Phi-3.
        padding_mask: whether sequences of a batch are padded to one length with a mask.
        loss: "stock" is the installed transformers, "stock-4.48" the older one that upcasts,
            "tiled" tiles of tokens and words (TRL from 1.15 on), "chunked:N" N tokens at a time
            (TRL to 1.12), "fused" a kernel that keeps no logits (Liger);
            "in-place" a kernel that writes the gradient over the logits (Unsloth's, put in place
            of CrossEntropyLoss), "in-place-4.48" the same in place of the loss function that
            transformers has had since 4.46.
        accumulation: micro batches a step.
        loop: "trainer" lets go of the outputs before the backward pass; "manual", a step written
            by hand as a function, holds them until it returns; "script", a loop at the top of a
            program, until the next forward pass has made new ones.
        segments: of the allocator, "native" or "expandable".
        gpus: how many; zero: what of ZeRO or FSDP is sharded over them (0 nothing, 1 optimizer
            states, 2 gradients too, 3 parameters too).
        tensor_parallel, pipeline_parallel: ways a layer, or the row of layers, is cut.
        generate: tokens an inference goes on for after its prompt, which the cache must hold.
        torch: version of torch whose workspaces are meant, and with it those of transformers and
            peft that were current with it, where a load of quantized weights is concerned.
    """

    method: Method = "qlora"
    batch: int = 1
    sequence: int = 2048
    dtype: str | None = None
    autocast: bool | None = None
    autocast_dtype: str = "bf16"
    quant: str | None = None
    quant_storage: str = "uint8"
    kbit_prep: KbitPrep | None = None
    lora_rank: int = 16
    lora_targets: tuple[str, ...] = ("all-linear",)
    lora_dropout: float = 0.0
    adapter_dtype: str | None = None
    optimizer: Optimizer = "adamw"
    checkpointing: bool | None = None
    reentrant: bool = False
    kernels: Kernels = "torch"
    attention: AttentionKernel = "sdpa"
    repeat_kv: bool = False
    padding_mask: bool = False
    loss: str = "stock"
    accumulation: int = 1
    loop: Loop = "trainer"
    segments: Segments = "native"
    gpus: int = 1
    zero: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    generate: int = 0
    torch: str = "2.13"

    @property
    def tokens(self) -> int:
        """Tokens of a micro batch."""
        return self.batch * self.sequence

    @property
    def trains(self) -> bool:
        return self.method != "inference"

    @property
    def quantized(self) -> bool:
        """Whether weights are packed."""
        return self.quant not in (None, UNPACKED)

    @property
    def adapts(self) -> bool:
        """Whether low-rank adapters are trained over frozen weights."""
        return self.method in ("lora", "qlora")

    @property
    def four_bits(self) -> bool:
        """Whether bitsandbytes packs frozen weights two to a byte."""
        return self.quantized and self.quant not in ("int8", STORED)

    @property
    def data_parallel(self) -> int:
        """GPUs that each work on micro batches of their own."""
        return self.gpus // (self.tensor_parallel * self.pipeline_parallel)

    @property
    def groups(self) -> tuple[int, ...]:
        """Sizes of the groups of GPUs that one GPU talks to in a run: those with the same part of
        the model, to which it talks of gradients and shards, and those with the other parts."""
        copies = self.data_parallel if self.trains or self.zero else 1
        ways = (copies, self.tensor_parallel, self.pipeline_parallel)
        return tuple(size for size in ways if size > 1)


def resolve(plan: RunPlan, stored_dtype: str | None, packed_as: str | None = None) -> RunPlan:
    """The plan with nothing left open, for a checkpoint stored as `stored_dtype`, or quantized as
    `packed_as` says (`ModelShape.packed_as`): it is not quantized again. An inference
    has no backward pass, so checkpointing is off in it and there is one batch; a step of training
    generates nothing.

    Raises UsageError for a plan that cannot be, naming what is wrong and what to do.
    """
    quantized = plan.method == "qlora"
    quant = plan.quant or packed_as or ("nf4-dq" if quantized else None)
    if packed_as is None and quant == UNPACKED:
        quant = None
    check_storage(quant, packed_as)
    usual: KbitPrep = "none" if quant == STORED or plan.kernels == "fused" else "all"
    checkpointing = quantized if plan.checkpointing is None else plan.checkpointing
    resolved = replace(
        plan,
        dtype=_computed_in(stored_dtype) if plan.dtype is None else dtype_of(plan.dtype),
        autocast_dtype=dtype_of(plan.autocast_dtype),
        quant=quant,
        autocast=quantized if plan.autocast is None else plan.autocast,
        kbit_prep=plan.kbit_prep or (usual if quantized else "none"),
        adapter_dtype=dtype_of("fp32" if plan.adapter_dtype is None else plan.adapter_dtype),
        lora_targets=parse_targets(",".join(plan.lora_targets)),
        loss=parse_loss(plan.loss),
        checkpointing=checkpointing and plan.trains,
    )
    check(resolved, packed_as)
    return replace(resolved, generate=0) if plan.trains else replace(resolved, accumulation=1)


def _computed_in(stored_dtype: str | None) -> str:
    """The type of a checkpoint, bf16 where it is not known. Raises UsageError for one that weights
    are only stored in."""
    try:
        return dtype_of(stored_dtype or "bf16")
    except UsageError:
        raise UsageError(
            f"The configuration says that weights are stored as {stored_dtype!r}, in which no "
            f"model is computed here; say with --dtype what it is computed in: "
            f"{', '.join(FLOATING)}."
        ) from None


__all__ = [
    "AttentionKernel",
    "KbitPrep",
    "Method",
    "Optimizer",
    "RunPlan",
    "UsageError",
    "check_against",
    "chunk_of",
    "parse_loss",
    "parse_targets",
    "resolve",
    "without_logits",
]
