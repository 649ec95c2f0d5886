"""A run: loads, prepares and trains a model, and reports its phases."""

from __future__ import annotations

import importlib
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count

import torch

from qtui_core.errors import QtuiError
from qtui_core.live.snapshot import LogMessage, PhaseBegun, Snapshot, State, StepRanges, StepTaken
from qtui_core.live.state import COMPARE, IMPORT, QUANTIZE
from qtui_core.memory.advice.fit import Advice
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.models.source import ModelSource
from qtui_core.telemetry.readings import INTERVAL, sampling
from qtui_core.training.limits import rate_of
from qtui_core.training.measuring.meters import Meter, clear_workspaces, open_meter
from qtui_core.training.measuring.ranges import ranges_of_step
from qtui_core.training.model import build, optimizers
from qtui_core.training.model.adapters import LONGEST, AdapterComparison
from qtui_core.training.model.quantized import quantize_linears, stored_bytes
from qtui_core.training.model.weights import load_weights, settle, warm_up
from qtui_core.training.run.data import encode, fill, text_of
from qtui_core.training.run.faults import OUT_OF_MEMORY, fault_of, not_a_number
from qtui_core.training.run.placement import Order
from qtui_core.training.run.request import Controls
from qtui_core.training.step import batch_of, infer, take_steps
from qtui_core.training.tracing.tracker import ComponentOf, NamedTensors

Tell = Callable[[Snapshot], None]


class PhaseReporter:
    """How far a run has come. Reports its phases, with the meter's readings at their ends.

    Args:
        tell: receives the reports.
        controls: the commands to the run.
        began: `time.perf_counter()` at the beginning of the run.
    """

    meter: Meter

    def __init__(self, tell: Tell, controls: Controls, began: float) -> None:
        self.tell = tell
        self.controls = controls
        self.step = 0
        self.name = ""
        self._began = began
        self._step_of_phase = 0
        #: Seconds that were spent on reading meters and on reporting; they are not part of a step.
        self.metering = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    @property
    def working(self) -> float:
        """Seconds since the run began, without those spent on reading meters and on reporting."""
        return self.seconds - self.metering

    @property
    def at(self) -> Phase | None:
        return Phase(self.name) if self.name in frozenset(Phase) else None

    def phase(self, phase: str, *, begun: bool = False) -> None:
        """Ends the current phase and begins the next. `begun`: its beginning was reported already.

        Raises Stopped if the run should stop.
        """
        self.finish()
        self.controls.check()
        began = time.perf_counter()
        self.name, self._step_of_phase = phase, self.step
        self.meter.begin(phase)
        if not begun:
            self.tell(PhaseBegun(self.seconds, self.step, str(phase)))
        self.metering += time.perf_counter() - began

    def finish(self) -> dict[str, int]:
        """Ends the current phase, if there is one. Returns the bytes that it held at its end, by
        component."""
        if not self.name:
            return {}
        self.meter.wait()
        over = time.perf_counter()
        ended = self.meter.end(self.seconds, self._step_of_phase)
        self.name = ""
        self.tell(ended)
        self.metering += time.perf_counter() - over
        return dict(ended.held)

    def track(self, tensors: NamedTensors, component: ComponentOf) -> None:
        began = time.perf_counter()
        self.meter.track(tensors, component)
        self.metering += time.perf_counter() - began

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context for work on the device that is no part of the step: neither its seconds nor
        its memory count."""
        self.meter.wait()
        began = time.perf_counter()
        with self.meter.unseen():
            yield
        self.metering += time.perf_counter() - began

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        self.meter.leave_out(tensors)

    def say(self, text: str) -> None:
        """Reports a line for the log, if it has words."""
        if text:
            self.tell(LogMessage(self.seconds, text))


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
    reporter = PhaseReporter(tell, controls, began)
    with ExitStack() as stack:
        try:
            reporter.meter = open_meter(order.placement)
            stack.callback(reporter.meter.close)
            finite = run(source, order, reporter)
        except Exception as error:
            # Whatever a library raises becomes a fault, which is a state of the run. The phase is
            # ended first, while the frames of the exception still hold their tensors.
            if not isinstance(error, QtuiError):
                traceback.print_exc()
            step, phase = reporter.step, str(reporter.name) or IMPORT
            held: dict[str, int] = {}
            with suppress(Exception):  # a lost device cannot report its memory
                held = reporter.finish()
            fault = fault_of(error, reporter.seconds, step, phase, held, advice)
            tell(fault)
            known = isinstance(error, QtuiError) and fault.kind != OUT_OF_MEMORY
            return getattr(error, "exit_code", 1) if known else 1
    return 0 if finite else 1


def run(source: ModelSource, order: Order, reporter: PhaseReporter) -> bool:
    """Runs the order. Returns whether every loss was a finite number.

    Raises Stopped if it is asked to stop, QtuiError for what cannot be run, and whatever libraries
    raise if a step fails.
    """
    plan, meter, device = order.plan, reporter.meter, order.placement.torch_device
    with ExitStack() as stack:
        reporter.phase(IMPORT, begun=True)
        build.quiet()
        for library in ("bitsandbytes", "peft"):  # otherwise in the middle of a later phase
            importlib.import_module(library)
        learned = text_of(order.data)
        stack.enter_context(
            sampling(
                INTERVAL,
                lambda: meter.sample(reporter.seconds, reporter.step, str(reporter.name)),
                reporter.tell,
            )
        )
        built = _load(source, order, reporter)
        tokens = encode(learned.content, source, built.model)
        stack.enter_context(meter.watch())
        if plan.quant is not None:
            reporter.phase(QUANTIZE)
            if device != "cpu":
                nbytes = stored_bytes(built.model, plan)
                warm_up(nbytes, device, order.placement.device.capacity_bytes)
            quantize_linears(built.model, plan, device)
            reporter.track(built.state(), build.component_of_state(built))
        reporter.phase(Phase.PREPARE)
        build.use_liger(built.model, plan)
        build.prepare_base(built, plan)
        stack.enter_context(build.kernels_of(plan))
        compare = _comparison(source, built, order, reporter)
        build.add_adapters(built, plan)
        reporter.track(built.state(), build.component_of_state(built))
        batch = batch_of(built, plan, device)
        meter.standing.inputs = batch
        reporter.track(batch.items(), Component.INPUTS)
        reporter.say(
            f"It learns from {learned.origin}: {tokens.ids.size:,} tokens ({tokens.words}), again "
            f"and again."
        )
        compare()
        # The same batch object again and again, filled with the next tokens each time.
        batches = (batch for _ in fill(batch, tokens.ids, plan))
        finite = not plan.trains or _train(built, plan, batches, reporter, order)
        tokens_of_step = plan.batch * (plan.sequence + max(0, plan.generate - 1))
        for number in () if plan.trains else _numbers(reporter, order.steps):
            inputs = {name: tensor for name, tensor in next(batches).items() if name != "labels"}
            began = reporter.working
            infer(built, plan, inputs, reporter)
            seconds = reporter.working - began
            reporter.tell(StepTaken(reporter.seconds, number, None, seconds, tokens_of_step))
        compare()
        reporter.finish()
        return finite


def _load(source: ModelSource, order: Order, reporter: PhaseReporter) -> build.Built:
    """The model on its device. If it is quantized on the way there, it is first on the host, which
    is not counted."""
    reporter.phase(Phase.LOAD)
    built = load_weights(source, order.plan)
    if source.is_configuration:
        reporter.say("There is a configuration alone, so the weights are random.")
    reporter.meter.standing.built = built
    if order.plan.quant is None:
        settle(built.model, order.placement.torch_device)
        reporter.track(built.state(), build.component_of_state(built))
    else:
        reporter.leave_out(tensor for _, tensor in built.state())
    return built


def _comparison(
    source: ModelSource, built: build.Built, order: Order, reporter: PhaseReporter
) -> Callable[[], None]:
    """Runs the prompt, if there is one, on the base before it has adapters. Returns a function that
    compares later logits with those, in a phase of its own."""
    if order.text is None or not order.plan.adapts:
        return lambda: None
    reporter.phase(COMPARE)
    prompt = encode(order.text, source, built.model, least=1)
    ids = torch.from_numpy(prompt.ids[None, -LONGEST:]).to(order.placement.torch_device)
    # What products leave behind would be there before the first step, where none has made it.
    clear = clear_workspaces if ids.is_cuda else lambda: None
    comparison = AdapterComparison(ids, prompt.decode, order.plan, built.model)
    clear()
    reporter.phase(Phase.PREPARE)

    def compare() -> None:
        reporter.phase(COMPARE)
        reporter.tell(comparison.compare(built.model, reporter.seconds, reporter.step))
        clear()

    return compare


def _train(
    built: build.Built,
    plan: RunPlan,
    batches: Iterator[dict[str, torch.Tensor]],
    reporter: PhaseReporter,
    order: Order,
) -> bool:
    """Trains for some steps. Returns whether each loss was a finite number."""
    rate = rate_of(plan)
    if reporter.name != Phase.PREPARE:
        reporter.phase(Phase.PREPARE)
    standing = reporter.meter.standing
    optimizer = standing.optimizer = optimizers.make_optimizer(plan, built.model, rate)
    scaler = standing.scaler = optimizers.make_scaler(
        plan, built.model, order.placement.torch_device
    )
    reporter.track(optimizers.shared_tables(optimizer), Component.OPTIMIZER)
    reporter.say(f"{plan.optimizer} with a constant learning rate of {rate:g}.")
    if scaler is not None:
        reporter.say("Gradients are scaled, as a Trainer with fp16=True does it.")
    tokens = plan.tokens * plan.accumulation
    finite = True
    with closing(take_steps(built, optimizer, plan, batches, reporter, scaler)) as taken:
        for number in _numbers(reporter, order.steps):
            scale = optimizers.scale_of(scaler)
            began = reporter.working
            if reporter.controls.take_ranges() or (order.ranges and number == order.steps):
                with ranges_of_step(built.model, scale, reporter.aside) as ranges:
                    loss = next(taken)
                reporter.tell(StepRanges(reporter.seconds, number, scale, tuple(ranges)))
            else:
                loss = next(taken)
            seconds = reporter.working - began
            reporter.tell(StepTaken(reporter.seconds, number, loss, seconds, tokens))
            if loss is not None and not math.isfinite(loss):
                if finite:
                    reporter.tell(not_a_number(reporter.seconds, number, loss, plan, rate))
                finite = False
            else:
                reporter.say(optimizers.left_out(number, scale, optimizers.scale_of(scaler)))
    return finite


def _numbers(reporter: PhaseReporter, steps: int | None) -> Iterator[int]:
    """The number of each step, as soon as it may begin."""
    for number in count(1) if steps is None else range(1, steps + 1):
        reporter.controls.before_step(lambda state: reporter.tell(State(reporter.seconds, state)))
        reporter.step = number
        yield number
