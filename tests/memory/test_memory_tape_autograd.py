"""The tape against torch itself: the same small graphs, and what the CPU allocator of torch saw
while they ran (torch.profiler). Engine, checkpoints and operations in one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from lazy_imports import LazyImport, lazy_names

from qtui_core.memory.replay.record import ALLOCATE, FREE
from qtui_core.memory.tape.operations import (
    bmm,
    cat,
    cross_entropy,
    embedding,
    layer_norm,
    linear,
    softmax,
)
from qtui_core.memory.tape.tape import Tape, backward, checkpoint
from qtui_core.memory.tape.tensors import EPS, SCALE, Tensor

torch = LazyImport("torch")
nn = LazyImport("torch.nn")
functional = LazyImport("torch.nn.functional")
ProfilerActivity, profile = lazy_names("torch.profiler", "ProfilerActivity", "profile")
torch_checkpoint = LazyImport("torch.utils.checkpoint", "checkpoint")


#: Kernels of the CPU take a few numbers here and there.
SMALL = 64

BATCH, LENGTH, WIDTH, WORDS = 2, 128, 64, 500
ROWS = BATCH * LENGTH
X = ROWS * WIDTH


def real_levels(run: Callable[[], object]) -> list[int]:
    """Bytes alive after each allocation while `run` runs, above those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    del kept
    return levels([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])


def tape_levels(run: Callable[[Tape], object], tape: Tape) -> list[int]:
    """The same of a tape."""
    events = tape.events
    begun = len(events)
    sizes = {e[1]: e[2] for e in events if e[0] == ALLOCATE}
    kept = run(tape)
    changes = []
    for event in list(events)[begun:]:
        if event[0] == ALLOCATE:
            sizes[event[1]] = event[2]
            changes.append(event[2])
        elif event[0] == FREE:
            changes.append(-sizes[event[1]])
    del kept
    return levels(changes)


def levels(changes: list[int]) -> list[int]:
    live, found = 0, []
    for change in changes:
        if abs(change) > SMALL:
            live += change
            if change > 0:
                found.append(live)
    return found


def parameter(*shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def leaf(tape: Tape, elements: int, dtype: str = "fp32", trained: bool = True) -> Tensor:
    return tape.leaf(elements, dtype, "leaf", trained)


Case = tuple[Callable[[], object], Callable[[Tape], object], Tape]


def mean_square(x: torch.Tensor) -> torch.Tensor:
    return x.pow(2).mean()


def tape_mean_square(tape: Tape, x: Tensor) -> Tensor:
    return x.pow(2).mean(1)


def shared_weight() -> Case:
    """Gradients that are views are added out of place, the second of a weight too."""
    weight, x = parameter(WIDTH, WIDTH), torch.randn(BATCH, LENGTH, WIDTH)

    def run() -> object:
        hidden = functional.silu(functional.linear(x, weight))
        hidden = hidden + functional.linear(hidden, weight)
        loss = mean_square(hidden)
        del hidden
        loss.backward()
        return loss

    tape = Tape()
    w, given = leaf(tape, WIDTH * WIDTH), leaf(tape, X, trained=False)

    def taped(tape: Tape) -> object:
        hidden = linear(given, w, None, WIDTH, WIDTH).from_input("silu")
        hidden = hidden + linear(hidden, w, None, WIDTH, WIDTH)
        loss = tape_mean_square(tape, hidden)
        del hidden
        backward(tape, loss)
        return loss

    return run, taped, tape


def second_step() -> Case:
    """An existing gradient is added to in place."""
    weight, x = parameter(WIDTH, WIDTH), torch.randn(BATCH, LENGTH, WIDTH)

    def run() -> object:
        for _ in range(2):
            loss = mean_square(functional.linear(x, weight))
            loss.backward()
        return loss

    tape = Tape()
    w, given = leaf(tape, WIDTH * WIDTH), leaf(tape, X, trained=False)

    def taped(tape: Tape) -> object:
        for _ in range(2):
            loss = tape_mean_square(tape, linear(given, w, None, WIDTH, WIDTH))
            backward(tape, loss)
        return loss

    return run, taped, tape


def biased() -> Case:
    weight, bias = parameter(3 * WIDTH, WIDTH), parameter(3 * WIDTH)
    x = parameter(BATCH, LENGTH, WIDTH)

    def run() -> object:
        loss = mean_square(functional.linear(x, weight, bias))
        loss.backward()
        return loss

    tape = Tape()
    w, b = leaf(tape, 3 * WIDTH * WIDTH), leaf(tape, 3 * WIDTH)
    given = leaf(tape, X)

    def taped(tape: Tape) -> object:
        loss = tape_mean_square(tape, linear(given, w, b, WIDTH, 3 * WIDTH))
        backward(tape, loss)
        return loss

    return run, taped, tape


def norm(name: str, short: str) -> Case:
    """Casts, broadcasts, and gradients that the engine reduces to the size and dtype of the
    input."""
    dtype = getattr(torch, name)
    weight = parameter(WIDTH, dtype=dtype)
    x = parameter(BATCH, LENGTH, WIDTH, dtype=dtype)

    def normed(hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + 1e-6)
        return weight * hidden.to(dtype)

    def run() -> object:
        loss = mean_square(normed(x).to(torch.float32))
        loss.backward()
        return loss

    tape = Tape()
    w, given = leaf(tape, WIDTH, short), leaf(tape, X, short)

    def tape_normed(tape: Tape, hidden: Tensor) -> Tensor:
        hidden = hidden.to("fp32")
        variance = hidden.pow(2).mean(ROWS)
        hidden = hidden * (variance + EPS).rsqrt()
        return w * hidden.to(short)

    def taped(tape: Tape) -> object:
        loss = tape_mean_square(tape, tape_normed(tape, given).to("fp32"))
        backward(tape, loss)
        return loss

    return run, taped, tape


def tied() -> Case:
    """The weight of an embedding and of a head: three tensors of its size exist at once."""
    table, ids = parameter(WORDS, WIDTH), torch.randint(0, WORDS, (BATCH, LENGTH))

    def run() -> object:
        logits = functional.linear(functional.embedding(ids, table), table)
        loss = functional.cross_entropy(logits.view(-1, WORDS), ids.view(-1))
        del logits
        loss.backward()
        return loss

    tape = Tape()
    w, tokens = leaf(tape, WORDS * WIDTH), tape.new(ROWS, "int64", "ids")

    def taped(tape: Tape) -> object:
        hidden = [embedding(w, tokens, WIDTH)]
        logits = linear(hidden.pop(), w, None, WIDTH, WORDS)
        loss = cross_entropy(logits, tokens)
        del logits
        backward(tape, loss)
        return loss

    return run, taped, tape


def rotation() -> Case:
    """Parts of a tensor, whose gradients have its size and are added in place."""
    x, cosines = parameter(BATCH, LENGTH, WIDTH), torch.randn(LENGTH, WIDTH)

    def turned(x: torch.Tensor) -> torch.Tensor:
        first = x[..., : WIDTH // 2]
        second = x[..., WIDTH // 2 :]
        return torch.cat((-second, first), dim=-1)

    tape = Tape()
    given, table = leaf(tape, X), leaf(tape, LENGTH * WIDTH, trained=False)

    def tape_turned(tape: Tape, x: Tensor) -> Tensor:
        first, second = x.part(X // 2), x.part(X // 2)
        return cat(-second, first)

    def taped(tape: Tape) -> object:
        turned = given * table
        turned = turned + tape_turned(tape, given) * table
        loss = tape_mean_square(tape, turned)
        del turned
        backward(tape, loss)
        return loss

    def run() -> object:
        rotated = x * cosines
        rotated = rotated + turned(x) * cosines
        loss = mean_square(rotated)
        del rotated
        loss.backward()
        return loss

    return run, taped, tape


def attention() -> Case:
    """Scores written out, queries, keys and values from one product, keys of fewer heads."""
    heads, size = 4, 16
    weight, x = parameter(2 * WIDTH, WIDTH), torch.randn(BATCH, LENGTH, WIDTH)
    width = heads * size

    def attended(x: torch.Tensor) -> torch.Tensor:
        q, k, v = functional.linear(x, weight).split([width, width // 2, width // 2], dim=-1)
        q = q.view(BATCH, LENGTH, heads, size).transpose(1, 2)
        k = k.view(BATCH, LENGTH, heads // 2, size).transpose(1, 2)
        v = v.view(BATCH, LENGTH, heads // 2, size).transpose(1, 2)
        k = k.repeat_interleave(2, 1)
        v = v.repeat_interleave(2, 1)
        scores = torch.matmul(q, k.transpose(2, 3)) * 0.25
        scores = functional.softmax(scores, dim=-1)
        return torch.matmul(scores, v)

    def run() -> object:
        return attended(x).sum()

    tape = Tape()
    w, given = leaf(tape, 2 * WIDTH * WIDTH), leaf(tape, X, trained=False)

    def tape_attended(tape: Tape, x: Tensor) -> Tensor:
        q, k, v = linear(x, w, None, WIDTH, 2 * width).split(X, X // 2, X // 2)
        k = k.repeat(2)
        v = v.repeat(2)
        # Sequences and heads of queries do not lie together: the product copies them first.
        scores = bmm(q.clone(), k, BATCH * heads * LENGTH * LENGTH)
        scores = scores * SCALE
        scores = softmax(scores)
        return bmm(scores, v, X)

    def taped(tape: Tape) -> object:
        return tape_attended(tape, given).mean(1)

    return run, taped, tape


def layer_normed() -> Case:
    module = nn.LayerNorm(WIDTH, elementwise_affine=False)
    x = parameter(BATCH, LENGTH, WIDTH)

    def run() -> object:
        loss = mean_square(functional.gelu(torch.tanh(module(x))))
        loss.backward()
        return loss

    tape = Tape()
    given = leaf(tape, X)

    def taped(tape: Tape) -> object:
        hidden = [layer_norm(given, None, None, WIDTH)]
        hidden = [hidden.pop().tanh()]
        hidden = [hidden.pop().from_input("gelu")]
        loss = tape_mean_square(tape, hidden.pop())
        backward(tape, loss)
        return loss

    return run, taped, tape


def checkpointed(layers: int) -> Case:
    """Layers that are recomputed, up to the last tensor that they save."""
    ups = [parameter(3 * WIDTH, WIDTH) for _ in range(layers)]
    downs = [parameter(WIDTH, 3 * WIDTH) for _ in range(layers)]
    x = torch.randn(BATCH, LENGTH, WIDTH)

    def layer(up: torch.Tensor, down: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        residual = hidden
        hidden = functional.linear(hidden, up)
        hidden = functional.silu(hidden)
        hidden = functional.linear(hidden, down)
        return residual + hidden

    def run() -> object:
        hidden = x
        for up, down in zip(ups, downs, strict=True):
            hidden = torch_checkpoint(
                partial(layer, up, down), hidden, use_reentrant=False, preserve_rng_state=False
            )
        loss = mean_square(hidden)
        del hidden
        loss.backward()
        return loss

    tape = Tape()
    given = leaf(tape, X, trained=False)
    pairs = [(leaf(tape, 3 * WIDTH * WIDTH), leaf(tape, 3 * WIDTH * WIDTH)) for _ in range(layers)]

    def tape_layer(tape: Tape, up: Tensor, down: Tensor, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = linear(hidden, up, None, WIDTH, 3 * WIDTH)
        hidden = hidden.from_input("silu")
        hidden = linear(hidden, down, None, 3 * WIDTH, WIDTH)
        return residual + hidden

    def taped(tape: Tape) -> object:
        hidden = given
        for up, down in pairs:
            hidden = checkpoint(tape, partial(tape_layer, tape, up, down), hidden)
        loss = tape_mean_square(tape, hidden)
        del hidden
        backward(tape, loss)
        return loss

    return run, taped, tape


CASES: dict[str, Callable[[], Case]] = {
    "shared weight": shared_weight,
    "second step": second_step,
    "bias": biased,
    "norm of float32": partial(norm, "float32", "fp32"),
    "norm of bfloat16": partial(norm, "bfloat16", "bf16"),
    "tied embedding": tied,
    "rotation": rotation,
    "attention, forward": attention,
    "layer norm": layer_normed,
    "one checkpoint": partial(checkpointed, 1),
    "three checkpoints": partial(checkpointed, 3),
}


@pytest.mark.parametrize("name", CASES)
def test_the_tape_allocates_and_frees_as_torch_does(name: str) -> None:
    run, taped, tape = CASES[name]()
    real = real_levels(run)
    assert len(real) > 4
    assert tape_levels(taped, tape) == real
