"""Workspaces and contexts: the sizes in torch's source, and their ranges."""

from __future__ import annotations

import pytest
from every import over
from small_models import config_of

from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import (
    context_bytes,
    cublas_workspace,
    find_device,
    nccl_bytes,
    outside_torch,
    parse_version,
)
from qtui_core.memory.estimate import NCCL, estimate
from qtui_core.memory.plan.options import parse_torch
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.shape.from_config import shape_from_config

MIB = 1 << 20


def test_the_default_is_what_its_configuration_spells():
    # The comment in CublasHandlePool.cpp: ":4096:2:16:8 default, 32MiB for Hopper".
    assert cublas_workspace("2.13").each == (4096 * 2 + 16 * 8) * 1024 == 8_519_680


@over(
    ("torch", "gpu", "each"),
    [
        ("2.8", "T4", 8_519_680),
        ("2.13", "A100", 8_519_680),
        ("2.13", "RTX 4090", 8_519_680),
        ("2.8.0+cu128", "H100", 32 * MIB),
        ("2.13", "H200", 32 * MIB),
        ("2.10", "B200", 8_519_680),
        ("2.13", "B200", 32 * MIB),
        ("2.13", "B300", 32 * MIB),
        ("2.10", "RTX 5090", 8_519_680),
        ("2.13", "RTX 5090", 32 * MIB),
        ("2.13", "MI250X", 32 * MIB),
        ("2.13", "MI300X", 128 * MIB),
    ],
)
def test_sizes_by_version_and_device(torch, gpu, each):
    workspace = cublas_workspace(torch, find_device(gpu))
    assert workspace.each == each
    assert workspace.bytes == 2 * each


def test_inference_has_one():
    assert cublas_workspace("2.13", find_device("A100"), trains=False).bytes == 8_519_680


def test_later_versions_give_them_back():
    workspace = cublas_workspace("2.15", find_device("H100"))
    assert workspace.bytes == 0
    assert cublas_workspace("2.15", find_device("MI300X")).bytes > 0


@pytest.mark.parametrize("version", ["newest", "9" * 5000 + ".1", "2", "2.13-", "2.x"])
def test_a_version_that_does_not_parse_is_refused(version):
    for read in (cublas_workspace, parse_torch):
        with pytest.raises(UsageError, match="is no version of torch"):
            read(version)


@pytest.mark.parametrize(
    "version", ["2.13", " 2.13 ", "2.13.1", "2.13.0+cu130", "2.13a0", "2.13.0.dev20260901+cpu"]
)
def test_a_version_is_read_in_one_way(version):
    assert parse_version(version) == parse_version(parse_torch(version)) == (2, 13)


def test_contexts_hold_what_was_published():
    # Bytes of pytorch pull request 86509, lazy and eager, and MiB of others.
    found = context_bytes()
    for published in (287_047_680, 666_632_192, 300 * MIB, 400 * MIB, 426 * MIB):
        assert found.low <= published <= found.high
    assert found.uncertainty == max(found.high - found.bytes, found.bytes - found.low)
    assert context_bytes(find_device("RTX 6000 Ada")).bytes == 426 * MIB


@pytest.mark.parametrize(
    ("chosen", "groups"),
    [
        ({}, ()),
        ({"gpus": 2}, (2,)),
        ({"gpus": 8, "zero": 3}, (8,)),
        ({"gpus": 8, "tensor_parallel": 2, "pipeline_parallel": 2}, (2, 2, 2)),
        ({"gpus": 4, "tensor_parallel": 4}, (4,)),
        ({"gpus": 4, "method": "inference"}, ()),  # replicas that never communicate
    ],
)
def test_gpus_that_talk_to_each_other_have_communicators(chosen, groups):
    """NVIDIA/nccl issue 964: 544 MiB for two GPUs, 688 MiB for more."""
    plan = RunPlan(**({"method": "full"} | chosen))
    assert plan.groups == groups
    measured = sum((544 if size == 2 else 688) << 20 for size in groups)
    assert nccl_bytes(groups).bytes == measured
    assert outside_torch(None, groups).bytes == context_bytes().bytes + measured
    assert nccl_bytes(groups).low <= measured <= nccl_bytes(groups).high


def test_the_process_has_what_nccl_takes_and_says_so():
    shape = shape_from_config(config_of("llama").to_dict())
    found = estimate(shape, RunPlan(method="full", sequence=64, gpus=2), find_device("A10"))
    (nccl,) = [term for term in found.beyond if term.name == NCCL]
    assert nccl.bytes == 544 << 20
    assert nccl.basis == "calibrated"
    assert "1 group of GPUs" in nccl.formula
    assert found.process_bytes == found.peak_allocated_bytes + sum(t.bytes for t in found.beyond)
    assert found.uncertainty_bytes == outside_torch(find_device("A10"), (2,)).uncertainty
