"""Estimates where the bytes of a run go, from its configuration alone. Standard library only."""

from qtui_core.memory.estimate import Estimate, estimate
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape
