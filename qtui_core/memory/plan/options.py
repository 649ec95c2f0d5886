"""The options of a plan, one row each: everything about a run that changes its memory. The command
line, the form, the text and the JSON of a plan, its check, its notes and its advice all read the
rows.

A row is the default of the option's field in the class of plans (`RunPlan`), made by the function
for its kind.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields, replace
from functools import cache
from operator import attrgetter
from typing import Any, Final, Literal, get_args

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import parse_version
from qtui_core.memory.dtypes import FLOATING, dtype_of
from qtui_core.memory.plan.optimizers import OPTIMIZERS, Optimizer
from qtui_core.memory.shape.packings import STORED

Method = Literal["full", "lora", "qlora", "inference"]
KbitPrep = Literal["none", "norms", "all"]
AttentionKernel = Literal["sdpa", "flash", "efficient", "eager"]
Loop = Literal["trainer", "manual"]
Segments = Literal["native", "expandable"]
Kernels = Literal["torch", "fused", "liger"]
Loss = Literal["stock", "stock-4.48", "tiled", "fused", "in-place", "in-place-4.48"]

#: How bitsandbytes can store frozen weights; "-dq" also quantizes the block absmaxes.
QUANTS: Final = ("nf4", "nf4-dq", "fp4", "fp4-dq", "int8")
#: Types in which bitsandbytes can store packed 4-bit weights (bnb_4bit_quant_storage), its default
#: first.
QUANT_STORAGES: Final = ("uint8", "bf16", "fp16", "fp32")
#: These, and a checkpoint that another library packed.
STORAGES: Final = (*QUANTS, STORED)
#: Types of a key-value cache, first that of activations (vLLM calls it auto, too).
KV_DTYPES: Final = ("auto", "bf16", "fp8", "int8", "int4")
#: A quantized checkpoint that is unpacked while it is loaded.
UNPACKED: Final = "none"
#: All linear layers except the one that gives logits.
ALL_LINEAR: Final = "all-linear"


def parse_targets(text: str) -> tuple[str, ...]:
    """The modules that get adapters: names separated by commas, or "all-linear".

    Raises UsageError for an empty list, for something that is no name, and for all-linear beside
    names.
    """
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not names:
        raise UsageError(
            f"No module is named to put adapters on; write {ALL_LINEAR}, or names with commas "
            "between, such as q_proj,v_proj."
        )
    if ALL_LINEAR in names and len(names) > 1:
        raise UsageError(
            f"{ALL_LINEAR} already takes every linear layer; leave out "
            f"{', '.join(name for name in names if name != ALL_LINEAR)}."
        )
    for name in names:
        if name != ALL_LINEAR and not name.replace(".", "_").isidentifier():
            raise UsageError(
                f"{name!r} is no name of a module; names are like q_proj or mlp.down_proj."
            )
    return names


def parse_torch(text: str) -> str:
    """The canonical text of a torch version. Raises UsageError if it is not a version."""
    parse_version(text)
    return text.strip()


def without_logits(loss: str) -> bool:
    """Whether a loss takes the head's input and weight, so that the logits of all tokens are never
    computed at once."""
    return loss in ("tiled", "fused")


#: The headings of options, in order.
Group = Literal["run", "numbers", "adapters", "step", "machine"]
GROUPS: Final = get_args(Group)
Kind = Literal["choice", "switch", "whole", "share", "text", "names"]

#: Numbers with more digits are refused without parsing.
_MOST_DIGITS: Final = 12


#: `counts` of an option that matters in every plan, as `bool` of any plan is True.
ALWAYS: Final = bool


def any_value(one: Any, other: Any) -> bool:
    """`alike` of an option that changes memory and time, and nothing that is learned."""
    return True


@dataclass(frozen=True)
class Cheaper:
    """A value that saves memory, what it costs, and in which plans it is estimated: those in which
    the option counts and has another value."""

    value: Any
    cost: str
    where: Callable[[RunPlan], bool] = ALWAYS


@dataclass(frozen=True)
class PlanOption:
    """An option of a plan.

    Attributes:
        flag: on the command line.
        help: its text in `--help`.
        group: the heading under which it is shown.
        kind: how its values are written.
        noun: what errors call a value.
        allowed: the possible values; empty if they are not enumerated.
        steps: the values that the keys of the form step through; empty for options that are not on
            the form.
        least, most: bounds of a whole number.
        read: turns what is typed into the canonical value. Raises UsageError.
        typed: whether the form accepts other values than `steps`.
        label: on the form; empty for the name.
        metavar: the placeholder for a value in `--help`.
        last: whether it is shown after the others of its group.
        counts: whether it matters in a plan in which every option has a value.
        idle: the reason to note if it is set and changes nothing; empty for no note.
        refused: why its value is impossible in a plan in which every option has a value, empty if
            it is possible; None if it always is.
        cheaper: values that save memory.
        alike: whether two of its values train the same parameters to the same numbers, but for the
            order of sums.
        name, default: of its field.
    """

    flag: str
    help: str
    group: Group
    kind: Kind
    noun: str = ""
    allowed: tuple[Any, ...] = ()
    steps: tuple[Any, ...] = ()
    least: int = 0
    most: int = 0
    read: Callable[[str], Any] | None = None
    typed: bool = False
    label: str = ""
    metavar: str = ""
    last: bool = False
    counts: Callable[[RunPlan], bool] = ALWAYS
    idle: str = ""
    refused: Callable[[RunPlan], str] | None = None
    cheaper: tuple[Cheaper, ...] = ()
    alike: Callable[[Any, Any], bool] = operator.eq
    name: str = ""
    default: Any = None

    def written(self, value: Any) -> str:
        """The option with a value as it is typed: `--batch 4`, `--no-autocast`."""
        if isinstance(value, bool):
            return self.flag if value else self.off
        if value is None:
            value = "none"
        return f"{self.flag} {','.join(value) if isinstance(value, tuple) else value}"

    @property
    def off(self) -> str:
        """The flag that turns a switch off."""
        return self.flag.replace("--", "--no-", 1)

    def normal(self, value: Any) -> Any:
        """The canonical form of a value. Raises UsageError if it is invalid."""
        if self.read is None or value is None or self.kind not in ("text", "names"):
            return value
        return self.read(",".join(value) if isinstance(value, tuple) else value)

    def check(self, value: Any) -> None:
        """Raises UsageError if `value` is not a value of the option."""
        if self.allowed and value is not None and value not in self.allowed:
            names = ", ".join(map(str, self.allowed))
            raise UsageError(f"{value!r} is no {self.noun} that is known; use {names}.")
        if self.kind == "whole":
            if isinstance(value, bool) or not isinstance(value, int):
                raise UsageError(f"{self.noun} is a whole number, not {value!r}.")
            if not self.least <= value <= self.most:
                raise UsageError(
                    f"{self.noun} is between {self.least} and {self.most:,}; {value:,} is not."
                )


def _row(default: Any, flag: str, help: str, kind: Kind, *, group: Group, **more: Any) -> Any:
    return field(default=default, metadata={"option": PlanOption(flag, help, group, kind, **more)})


def choice(default: str | None, flag: str, allowed: Any, help: str, **more: Any) -> Any:
    """The row of an option whose values are names: a Literal, or a sequence. The form steps through
    all, or through `steps`."""
    names = get_args(allowed) or tuple(allowed)
    return _row(default, flag, help, "choice", **{"allowed": names, "steps": names} | more)


def switch(default: bool | None, flag: str, help: str, **more: Any) -> Any:
    """The row of an option that is on or off."""
    return _row(default, flag, help, "switch", steps=(False, True), **more)


def whole(default: int, flag: str, help: str, *, most: int, **more: Any) -> Any:
    """The row of an option that is a whole number. `most` is far above what anyone runs, and low
    enough to catch typing errors."""
    usual: dict[str, Any] = {"least": 1, "read": whole_number, "typed": True, "metavar": "N"}
    return _row(default, flag, help, "whole", most=most, **usual | more)


def text(
    default: Any, flag: str, metavar: str, help: str, *, kind: Kind = "text", **more: Any
) -> Any:
    """The row of an option of any other kind."""
    return _row(default, flag, help, kind, metavar=metavar, **more)


def options_of(plans: type) -> tuple[PlanOption, ...]:
    """The rows of a class of plans, in the order of its fields."""
    return _rows(plans)


@cache
def _rows(plans: type) -> tuple[PlanOption, ...]:
    return tuple(
        replace(each.metadata["option"], name=each.name, default=each.default)
        for each in fields(plans)
    )


def grouped_options(plans: type) -> Mapping[str, tuple[PlanOption, ...]]:
    """The rows by group, in the order in which they are shown."""
    rows = sorted(options_of(plans), key=lambda option: option.last)
    return {group: tuple(row for row in rows if row.group == group) for group in GROUPS}


def whole_number(text: str) -> int:
    """The number in a text such as "4096", "4,096" or "4k". Raises UsageError for anything else."""
    plain = text.strip().lower().replace(",", "").replace("_", "")
    factor = 1024 if plain.endswith("k") else 1
    digits = plain.removesuffix("k")
    if not (digits.isascii() and digits.isdigit()):
        raise UsageError(f"{text!r} is no whole number; write one such as 4096 or 4k.")
    if len(digits) > _MOST_DIGITS:
        raise UsageError(f"A number of {len(digits)} digits is more than any plan can have.")
    return int(digits) * factor


def share(text: str) -> float:
    """The number in a text such as "0.05". Raises UsageError if it is not a number."""
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is no number; write one such as 0.05.") from None


def powers(low: int, high: int) -> tuple[int, ...]:
    """The powers of two from `low` to `high`."""
    return tuple(1 << power for power in range(low.bit_length() - 1, high.bit_length()))


BATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
_SEQUENCES: Final = (
    128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    49152, 65536, 98304, 131072,
)  # fmt: skip
_TARGETS: Final = ((ALL_LINEAR,), ("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "o_proj"))
_WIDE_STATES: Final = (("AdamW", "tensor"), ("AdamW", "fp32"))
_NO_ADAPTERS: Final = "only lora and qlora have adapters"
_TRAINS: Final = attrgetter("trains")
_ADAPTS: Final = attrgetter("adapts")
_SHARES: Final = attrgetter("shares")


@dataclass(frozen=True)
class RunPlan:
    """A run. Each field is an option, its default a row of the table. None means "the usual value
    for the method and the model", which `resolve` fills in. The order is that of `--help` and of
    the JSON."""

    # fmt: off
    # An inference is a prefill with its cache.
    method: Method = choice(
        "qlora", "--method", Method, "What is trained, or that nothing is.", noun="method",
        group="run",
    )
    # Of a micro batch; `trains_like` compares its product with accumulation.
    batch: int = whole(
        1, "--batch", "Sequences in a micro batch.", noun="The batch", group="run",
        most=1 << 20, steps=BATCHES, alike=any_value,
    )
    sequence: int = whole(
        2048, "--seq", "Tokens in a sequence; where none are given, no more than a model has "
        "learned positions for.", noun="The sequence", group="run", most=1 << 27,
        steps=_SEQUENCES,
    )
    image_tokens: int = whole(
        0, "--image-tokens", "Tokens of a sequence that are images, as a language model gets them.",
        noun="The number of image tokens", group="run", least=0, most=1 << 27,
        steps=(0, *powers(64, 2048)),
    )
    # Dtype of the model's parameters and activations; None means that of the checkpoint.
    dtype: str | None = text(
        None, "--dtype", "TYPE", "Of parameters and activations: fp32, bf16, fp16, or torch's "
        "names. [default: that of the checkpoint]", group="numbers", steps=FLOATING, read=dtype_of,
    )
    # Whether the forward pass runs under torch.autocast to 16 bits; `autocast_dtype` is the type.
    autocast: bool | None = switch(
        None, "--autocast", "Run the forward pass under torch.autocast (the Trainer's bf16=True). "
        "[default: on for qlora]", group="numbers",
    )
    autocast_dtype: str = text(
        "bf16", "--autocast-dtype", "TYPE", "The 16-bit type of autocast.", group="numbers",
        label="autocast to", steps=("bf16", "fp16"), read=dtype_of, idle="autocast is off",
        counts=lambda plan: plan.autocast is True,
        refused=lambda plan: (
            "Autocast runs in 16 bits; use bf16 or fp16 for it, or --no-autocast."
            * (plan.autocast_dtype == "fp32")
        ),
    )
    # How frozen weights are quantized; None means not at all. "stored" keeps a quantized checkpoint
    # as it is, "none" unpacks it while it is loaded.
    quant: str | None = choice(
        None, "--quant", (*STORAGES, UNPACKED), "How frozen weights are stored; a quantized "
        "checkpoint is taken as it is, or unpacked as it is loaded (none). "
        "[default: as the checkpoint has them; of a plain one nf4-dq for qlora, else none]",
        noun="way to store weights", group="numbers", steps=QUANTS,
        counts=lambda plan: plan.method in ("qlora", "inference"),
    )
    kv_dtype: str = choice(
        KV_DTYPES[0], "--kv-dtype", KV_DTYPES, "Of the key-value cache of an inference: auto is "
        "that of activations; fp8, int8 and int4 quantize it.", noun="type of a cache",
        group="numbers", label="cache in", counts=lambda plan: not plan.trains,
        refused=lambda plan: (
            "A step of training keeps no cache of keys and values; use --method inference, or "
            "leave out --kv-dtype." * (plan.trains and plan.kv_dtype != KV_DTYPES[0])
        ),
        cheaper=(
            Cheaper("fp8", "accuracy of an 8-bit cache (QuantizedCache of transformers, or vLLM's)",
                    lambda plan: not plan.recasts_cache),
        ),
    )
    # FSDP shards weights that are packed into a floating-point type, but not into "uint8".
    quant_storage: str = choice(
        "uint8", "--quant-storage", QUANT_STORAGES, "Type that 4-bit weights are packed into "
        "(bnb_4bit_quant_storage): --zero 3 shards them only in a floating-point one.",
        noun="type to pack 4-bit weights into", group="numbers", label="packed into",
        counts=lambda plan: plan.four_bits and plan.zero == 3,
        idle="it decides what --zero 3 shards of 4-bit weights", alike=any_value,
    )
    # "norms" is what older TRL does, "all" is peft's prepare_model_for_kbit_training.
    kbit_prep: KbitPrep | None = choice(
        None, "--kbit-prep", KbitPrep, "Which 16-bit parameters that are not quantized "
        "become float32: all is peft's prepare_model_for_kbit_training. "
        "[default: all for qlora, else none]", noun="k-bit preparation", group="numbers",
        label="k-bit prep", counts=lambda plan: plan.method == "qlora",
    )
    lora_rank: int = whole(
        16, "--lora-rank", "Rank of the adapters.", noun="The rank of the adapters",
        group="adapters", label="rank", most=1 << 16, steps=powers(1, 512), counts=_ADAPTS,
        idle=_NO_ADAPTERS,
        cheaper=(Cheaper(8, "adapters of a lower rank", lambda plan: plan.lora_rank > 8),),
    )
    # Names of linear modules and, as in "experts.down_proj", of stacked experts, or "all-linear".
    lora_targets: tuple[str, ...] = text(
        (ALL_LINEAR,), "--lora-targets", "NAME,NAME", "Modules and experts that get adapters.",
        kind="names", group="adapters", label="targets", steps=_TARGETS, read=parse_targets,
        typed=True, counts=_ADAPTS, idle=_NO_ADAPTERS,
    )
    lora_dropout: float = text(
        0.0, "--lora-dropout", "SHARE", "Dropout before each adapter.", kind="share",
        group="adapters", label="dropout", steps=(0.0, 0.05, 0.1), read=share, typed=True,
        counts=_ADAPTS, idle=_NO_ADAPTERS,
        refused=lambda plan: (
            f"Dropout is a share from 0 to below 1; {plan.lora_dropout} is not. 0.05 is usual."
            * (not 0 <= plan.lora_dropout < 1)
        ),
        cheaper=(Cheaper(0.0, "no dropout before adapters"),),
    )
    adapter_dtype: str | None = text(
        None, "--adapter-dtype", "TYPE", "Of the adapters.  [default: fp32, as peft makes them]",
        group="adapters", steps=FLOATING, read=dtype_of, counts=_ADAPTS, idle=_NO_ADAPTERS,
        cheaper=(
            Cheaper("bf16", "adapters lose small updates",
                    lambda plan: plan.adapter_dtype == "fp32"),
        ),
    )
    optimizer: Optimizer = choice(
        "adamw", "--optimizer", OPTIMIZERS, "adamw is torch's, on lists of tensors (foreach).",
        noun="optimizer", group="step", counts=_TRAINS, idle="an inference has no optimizer",
        alike=lambda one, other: OPTIMIZERS[one].learns == OPTIMIZERS[other].learns,
        cheaper=(
            Cheaper("adamw-fused", "nothing: the same result, and faster",
                    lambda plan: plan.optimizer == "adamw"),
            Cheaper("adamw8bit", "states in 8 bits",
                    lambda plan: OPTIMIZERS[plan.optimizer].learns in _WIDE_STATES),
            Cheaper("paged-adamw8bit", "states in 8 bits, paged to the host when it is full",
                    lambda plan: not plan.pages and OPTIMIZERS[plan.optimizer].update == "AdamW"),
        ),
    )
    checkpointing: bool | None = switch(
        None, "--checkpointing", "Recompute each layer in the backward pass. "
        "[default: on for qlora]", group="step", counts=_TRAINS,
        idle="an inference keeps nothing for a backward pass",
        cheaper=(Cheaper(True, "about a third more compute"),), alike=any_value,
    )
    # use_reentrant=True, the default of the Trainer in transformers 4.
    reentrant: bool = switch(
        False, "--reentrant", "Checkpoint in the older way, the default of transformers 4.",
        group="step", counts=lambda plan: plan.checkpointing is True,
        idle="nothing is checkpointed", alike=any_value,
    )
    # "fused" takes norms, rotary embeddings and adapters over 4-bit weights from Unsloth, which
    # work in place where they can (fms-acceleration's fused-ops-and-kernels); norm weights are then
    # not trained. "liger" is the Trainer's use_liger_kernel, which uses the "fused" loss.
    kernels: Kernels = choice(
        "torch", "--kernels", Kernels, "Which kernels replace torch's: fused takes norms, "
        "rotations and 4-bit adapters from Unsloth, liger norms, rotations and SwiGLU from Liger.",
        noun="set of kernels", group="step",
        refused=lambda plan: (
            "Fused kernels write the gradient of a 4-bit layer over its 16-bit input, which k-bit "
            "preparation makes float32; use --kbit-prep none, or --kernels torch."
            * (plan.kernels == "fused" and plan.quantized and plan.kbit_prep != "none")
        ),
    )
    # "sdpa" is flash attention where possible; "flash" the flash-attn package or that backend;
    # "efficient" the memory-efficient backend (for a T4 or a padding mask); "eager" computes the
    # matrix of scores.
    attention: AttentionKernel = choice(
        "sdpa", "--attention", AttentionKernel, "sdpa lets torch choose the kernel.",
        noun="attention", group="step", alike=any_value,
        refused=lambda plan: (
            "Flash attention works in 16 bits only; use --autocast, --dtype bf16, or --attention "
            "sdpa." * (plan.attention == "flash" and plan.dtype == "fp32" and not plan.autocast)
        ),
    )
    # As in transformers before 4.48: with sdpa in all models, with flash in Mistral, Mixtral, Qwen
    # 2 and Phi-3.
    repeat_kv: bool = switch(
        False, "--repeat-kv", "Grouped keys and values are copied to all heads, as in transformers "
        "before 4.48.", group="step", label="repeat k, v", alike=any_value,
    )
    padding_mask: bool = switch(
        False, "--padding-mask", "Sequences of a batch are padded to one length.", group="step",
    )
    # "stock" is the installed transformers; "in-place" a kernel that overwrites the logits with
    # their gradient (Unsloth's, in place of CrossEntropyLoss); "in-place-4.48" the same in place of
    # the loss function that transformers has had since 4.46.
    loss: Loss = choice(
        "stock", "--loss", Loss, "How the loss is computed: stock, stock-4.48 (upcasts logits), "
        "tiled (TRL from 1.15 on), fused (Liger), in-place or in-place-4.48 (its gradient is "
        "written over the logits).", noun="loss", group="step",
        counts=_TRAINS, idle="an inference has no loss", alike=any_value,
        cheaper=(
            Cheaper("tiled", "nothing in the result; a little time (TRL from 1.15 on)"),
            Cheaper("fused", "a kernel to install (Liger)"),
        ),
    )
    accumulation: int = whole(
        1, "--accumulation", "Micro batches in a step.", noun="Accumulation", group="run",
        most=1 << 20, steps=powers(1, 256), counts=_TRAINS,
        idle="an inference has no gradients to accumulate", alike=any_value,
        cheaper=(Cheaper(1, "a smaller batch in all", lambda plan: plan.method == "full"),),
    )
    # How long the outputs are held: "trainer" releases them before the backward pass; "manual", a
    # step written as a function, holds them until it returns.
    loop: Loop = choice(
        "trainer", "--loop", Loop, "manual holds the model's outputs through the backward pass.",
        noun="loop", group="run", last=True, counts=_TRAINS,
        idle="an inference has no backward pass", alike=any_value,
        cheaper=(Cheaper("trainer", "nothing: `del outputs` before loss.backward()"),),
    )
    segments: Segments = choice(
        "native", "--segments", Segments, "Kind of memory segments of torch's CUDA allocator.",
        noun="kind of segments", group="machine", last=True,
        alike=any_value,
    )
    gpus: int = whole(
        1, "--gpus", "How many GPUs train; figures are of one of them.", noun="The number of GPUs",
        group="machine", label="GPUs", most=1 << 17, steps=powers(1, 1024),
    )
    # The stage of ZeRO, or the equivalent in FSDP.
    zero: int = whole(
        0, "--zero", "What ZeRO or FSDP shards: 1 optimizer states, 2 gradients too, 3 weights "
        "too.", noun="The ZeRO stage", group="machine", label="ZeRO", least=0, most=3,
        steps=(0, 1, 2, 3), typed=False, counts=_SHARES,
        alike=any_value,
    )
    tensor_parallel: int = whole(
        1, "--tensor-parallel", "GPUs that share each layer.", noun="Tensor parallelism",
        group="machine", label="tensor par.", most=1 << 10, steps=powers(1, 64), counts=_SHARES,
        alike=any_value,
    )
    pipeline_parallel: int = whole(
        1, "--pipeline-parallel", "GPUs among which the layers are divided.",
        noun="Pipeline parallelism", group="machine", label="pipeline par.", most=1 << 10,
        steps=powers(1, 64), counts=_SHARES, alike=any_value,
    )
    # The cache must have room for them.
    generate: int = whole(
        0, "--generate", "Tokens that an inference generates after its prompt.",
        noun="The number of generated tokens", group="run", least=0, most=1 << 27,
        steps=(0, *powers(64, 65536)), counts=lambda plan: not plan.trains,
        idle="a step of training generates nothing",
    )
    # And the versions of transformers and peft that were current with it, for loading quantized
    # weights.
    torch: str = text(
        "2.13", "--torch", "VERSION", "The version of PyTorch that runs, for its workspaces.",
        group="machine", last=True, read=parse_torch, alike=any_value,
    )
    # fmt: on

    @property
    def tokens(self) -> int:
        """Tokens of a micro batch."""
        return self.batch * self.sequence

    @property
    def trains(self) -> bool:
        return self.method != "inference"

    @property
    def forward_passes(self) -> int:
        """How often a layer runs forward for a micro batch: twice if it is checkpointed, as the
        backward pass recomputes it."""
        return 1 + (self.checkpointing is True)

    @property
    def pages(self) -> bool:
        """Whether optimizer states are in memory that the driver may move to the host."""
        return self.trains and self.optimizer.startswith("paged")

    @property
    def recasts_cache(self) -> bool:
        """Whether keys and values are kept in another type than that of activations."""
        return self.kv_dtype not in (KV_DTYPES[0], self.dtype)

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
        """Whether bitsandbytes packs two frozen weights into a byte."""
        return self.quantized and self.quant not in ("int8", STORED)

    @property
    def shares(self) -> bool:
        """Whether several GPUs share the run."""
        return self.gpus > 1

    @property
    def data_parallel(self) -> int:
        """The number of GPUs (or groups of them) that each work on micro batches of their own."""
        return self.gpus // (self.tensor_parallel * self.pipeline_parallel)

    @property
    def groups(self) -> tuple[int, ...]:
        """Sizes of the groups of GPUs with which one GPU communicates: those with the same part of
        the model, for gradients and shards, and those with the other parts."""
        copies = self.data_parallel if self.trains or self.zero else 1
        ways = (copies, self.tensor_parallel, self.pipeline_parallel)
        return tuple(size for size in ways if size > 1)

    def grouped(self) -> list[tuple[str, str]]:
        """(group, its options as they are typed). Options of adapters are left out if there are no
        adapters."""
        return [
            (group, " ".join(option.written(getattr(self, option.name)) for option in options))
            for group, options in grouped_options(type(self)).items()
            if group != "adapters" or self.adapts
        ]

    def change_to(self, after: RunPlan) -> str:
        """What to type to change this plan into another."""
        return " ".join(
            option.written(getattr(after, option.name))
            for options in grouped_options(type(after)).values()
            for option in options
            if getattr(self, option.name) != getattr(after, option.name)
        )

    def without_effect(self, runs: RunPlan) -> Iterator[PlanOption]:
        """The options that this plan sets to other values than the default and that change nothing
        in `runs`, the same plan with a value for every option. Each row's `idle` says why."""
        for options in grouped_options(type(self)).values():
            for option in options:
                given = getattr(self, option.name) not in (option.default, False)
                if option.idle and given and not option.counts(runs):
                    yield option

    def trains_like(self, other: RunPlan) -> bool:
        """Whether two plans, with a value for every option, train the same parameters on the same
        number of tokens per step, to the same numbers: `alike` of each row says it of a value."""
        return self.batch * self.accumulation == other.batch * other.accumulation and all(
            option.alike(getattr(self, option.name), getattr(other, option.name))
            for option in options_of(type(self))
        )
