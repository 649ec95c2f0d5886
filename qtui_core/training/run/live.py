"""A run: loads, prepares and trains a model, and reports its course."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count

import torch

from qtui_core.errors import QtuiError
from qtui_core.live.snapshot import Fault, Snapshot, State, StepRanges, StepTaken
from qtui_core.memory.advice.changes import Advice
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.models.source import ModelSource
from qtui_core.telemetry.sampling import INTERVAL, Sampler
from qtui_core.training.measuring.meter_cpu import held_on_cpu
from qtui_core.training.measuring.meters import open_meter
from qtui_core.training.measuring.ranges import ranges_of_step
from qtui_core.training.model import build
from qtui_core.training.model.adapters import LONGEST, AdapterComparison
from qtui_core.training.model.components import component_of_state
from qtui_core.training.model.optimizers import make_optimizer, shared_tables
from qtui_core.training.model.quantized import quantize_linears, stored_bytes
from qtui_core.training.model.weights import is_random, load_weights, settle, warm_up
from qtui_core.training.run.controls import Controls
from qtui_core.training.run.course import Course, Tell
from qtui_core.training.run.data import encode, fill, text_of
from qtui_core.training.run.faults import fault_of, not_a_number, not_finite
from qtui_core.training.run.order import Order
from qtui_core.training.run.runnable import kernels_of, rate_of, use_liger
from qtui_core.training.run.scaling import left_out, make_scaler, scale_of, unscaled
from qtui_core.training.run.unused_options import targets_without_modules
from qtui_core.training.step import batch_of, infer, take_steps

IMPORT = "import"
QUANTIZE = "quantize"
#: The phase that compares the logits with adapters on and off.
COMPARE = "compare"


def run_to_end(
    source: ModelSource,
    order: Order,
    tell: Tell,
    controls: Controls,
    began: float,
    advice: Sequence[Advice] = (),
) -> int:
    """A whole run, from the import of its libraries to its last step or to the fault that ends it.
    Its beginning was reported already. Returns the exit code of the command, which is 1 if the run
    failed or a loss was not a number. Raises Stopped.

    `began` is `time.perf_counter()` when the run began; `advice` are changes that would save
    memory.
    """
    course = Course(tell, controls, began)
    with ExitStack() as stack:
        try:
            course.meter = open_meter(order.placement)
            stack.callback(course.meter.close)
            finite = run(source, order, course)
        except Exception as error:
            # Whatever a library raises becomes a fault, which is a state of the run.
            if not isinstance(error, QtuiError):
                traceback.print_exc()
            tell(told_fault(error, course, advice))
            return error.exit_code if isinstance(error, QtuiError) else 1
    return 0 if finite else 1


def run(source: ModelSource, order: Order, course: Course) -> bool:
    """Runs the order. Returns whether every loss was a finite number.

    Raises Stopped if it is asked to stop, QtuiError for what cannot be run, and whatever libraries
    raise if a step fails.
    """
    plan = order.plan
    with ExitStack() as stack:
        course.phase(IMPORT, begun=True)
        build.quiet()
        _import_libraries()
        learned = text_of(order.data)
        stack.enter_context(Sampler(INTERVAL, _sampled(course), course.tell))
        built = _load(source, order, course)
        tokens = encode(learned.content, source, built.model)
        stack.enter_context(course.meter.watch())
        if plan.quant is not None:
            _quantize(built, order, course)
        course.phase(Phase.PREPARE)
        use_liger(built.model, plan)
        build.prepare_base(built, plan)
        stack.enter_context(kernels_of(plan))
        compare = _comparison(source, built, order, course)
        if order.placement.torch_device == "cpu":
            for sentence in held_on_cpu(built.model, plan):
                course.say(sentence)
        names = [name for name, _ in built.model.named_modules()] if plan.adapts else []
        build.add_adapters(built, plan)
        if plan.adapts and (lacking := targets_without_modules(plan, names)):
            course.say(lacking)
        course.track(built.state(), component_of_state(built))
        batch = batch_of(built, plan, order.placement.torch_device)
        course.meter.standing.inputs = batch
        course.track(batch.items(), Component.INPUTS)
        course.say(
            f"It learns from {learned.origin}: {tokens.ids.size:,} tokens ({tokens.words}), again "
            f"and again."
        )
        compare()
        batches = _filled(batch, fill(batch, tokens.ids, plan))
        finite = True
        if plan.trains:
            finite = _train(built, plan, batches, course, order)
        else:
            _infer(built, plan, batches, course, order.steps)
        compare()
        course.finish()
        return finite


def _load(source: ModelSource, order: Order, course: Course) -> build.Built:
    """The model on its device. If it is quantized on the way there, it is first on the host, which
    is not counted."""
    course.phase(Phase.LOAD)
    built = load_weights(source, order.plan)
    if is_random(source):
        course.say("There is a configuration alone, so the weights are random.")
    course.meter.standing.built = built
    if order.plan.quant is None:
        settle(built.model, order.placement.torch_device)
        course.track(built.state(), component_of_state(built))
    else:
        course.leave_out(tensor for _, tensor in built.state())
    return built


def _quantize(built: build.Built, order: Order, course: Course) -> None:
    plan, placement = order.plan, order.placement
    course.phase(QUANTIZE)
    if placement.torch_device != "cpu":
        nbytes = stored_bytes(built.model, plan)
        warm_up(nbytes, placement.torch_device, placement.device.capacity_bytes)
    quantize_linears(built.model, plan, placement.torch_device)
    course.track(built.state(), component_of_state(built))


def _comparison(
    source: ModelSource, built: build.Built, order: Order, course: Course
) -> Callable[[], None]:
    """Runs the prompt, if there is one, on the base before it has adapters. Returns a function that
    compares later logits with those, in a phase of its own."""
    if order.text is None or not order.plan.adapts:
        return lambda: None
    course.phase(COMPARE)
    prompt = encode(order.text, source, built.model, least=1)
    ids = torch.from_numpy(prompt.ids[None, -LONGEST:]).to(order.placement.torch_device)
    comparison = AdapterComparison(ids, prompt.decode, order.plan, built.model)
    course.phase(Phase.PREPARE)

    def compare() -> None:
        course.phase(COMPARE)
        course.tell(comparison.compare(built.model, course.seconds, course.step))

    return compare


def told_fault(error: BaseException, course: Course, advice: Sequence[Advice]) -> Fault:
    """The fault that ended a run; its phase is ended first, so that what it held is known. Call
    this while the exception is being handled, because its frames still hold their tensors."""
    step, phase = course.step, str(course.name) or IMPORT
    try:
        held = course.finish()
    except Exception:  # a lost device cannot report its memory
        held = {}
    return fault_of(error, course.seconds, step, phase, held, advice)


def _train(
    built: build.Built,
    plan: RunPlan,
    batches: Iterator[dict[str, torch.Tensor]],
    course: Course,
    order: Order,
) -> bool:
    """Trains for some steps. Returns whether each loss was a finite number."""
    rate = rate_of(plan)
    if course.name != Phase.PREPARE:
        course.phase(Phase.PREPARE)
    standing = course.meter.standing
    optimizer = standing.optimizer = make_optimizer(plan, built.model, rate)
    scaler = standing.scaler = make_scaler(plan, built.model, order.placement.torch_device)
    course.track(shared_tables(optimizer), Component.OPTIMIZER)
    course.say(f"{plan.optimizer} with a constant learning rate of {rate:g}.")
    if scaler is not None:
        course.say("Gradients are scaled, as a Trainer with fp16=True does it.")
    if left := unscaled(plan, built.model):
        course.say(left)
    tokens = plan.tokens * plan.accumulation
    finite = True
    with closing(take_steps(built, optimizer, plan, batches, course, scaler)) as taken:
        for number in _numbers(course, order.steps):
            scale = scale_of(scaler)
            began = course.working
            if course.controls.take_ranges() or (order.ranges and number == order.steps):
                with ranges_of_step(built.model, scale, course.spend) as ranges:
                    loss = next(taken)
                course.tell(StepRanges(course.seconds, number, scale, tuple(ranges)))
            else:
                loss = next(taken)
            seconds = course.working - began
            course.tell(StepTaken(course.seconds, number, loss, seconds, tokens))
            if loss is not None and not math.isfinite(loss):
                if finite:
                    broken = not_finite(built.model)
                    told = not_a_number(course.seconds, number, loss, plan, rate, broken)
                    course.tell(told)
                finite = False
            elif said := left_out(number, scale, scale_of(scaler)):
                course.say(said)
    return finite


def _infer(
    built: build.Built,
    plan: RunPlan,
    batches: Iterator[dict[str, torch.Tensor]],
    course: Course,
    steps: int | None,
) -> None:
    tokens = plan.batch * (plan.sequence + max(0, plan.generate - 1))
    for number in _numbers(course, steps):
        batch = {name: tensor for name, tensor in next(batches).items() if name != "labels"}
        began = course.working
        infer(built, plan, batch, course)
        seconds = course.working - began
        course.tell(StepTaken(course.seconds, number, None, seconds, tokens))


def _numbers(course: Course, steps: int | None) -> Iterator[int]:
    """The number of each step, as soon as it may begin."""
    for number in count(1) if steps is None else range(1, steps + 1):
        course.controls.before_step(lambda state: course.tell(State(course.seconds, state)))
        course.step = number
        yield number


def _filled(
    batch: dict[str, torch.Tensor], filling: Iterator[None]
) -> Iterator[dict[str, torch.Tensor]]:
    """The same batch object again and again, filled with the next tokens each time."""
    for _ in filling:
        yield batch


def _sampled(course: Course) -> Callable[[], Snapshot]:
    return lambda: course.meter.sample(course.seconds, course.step, str(course.name))


def _import_libraries() -> None:
    """Imports what would otherwise be imported in the middle of a phase."""
    import bitsandbytes
    import peft

    assert bitsandbytes
    assert peft
