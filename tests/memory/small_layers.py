"""Layers of two or three operations. Import it late, because its classes extend torch's."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer


class Layer(GradientCheckpointingLayer):
    def __init__(self, size=4):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)

    def forward(self, x):
        return x + self.linear(x).tanh()


class Row(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def two_layers():
    return Row([Layer(), Layer()])


class AwqLike(torch.autograd.Function):
    """gptqmodel's AwqGemmFn for more than 1,024 rows, for which it unpacks the weight."""

    @staticmethod
    def forward(ctx, codes, x):
        ctx.save_for_backward(x, codes)
        return torch.matmul(x, codes.to(x.dtype))

    @staticmethod
    def backward(ctx, gradient):
        _, codes = ctx.saved_tensors
        weight = codes.to(gradient.dtype).transpose(0, 1).unsqueeze(0)
        return None, gradient.bmm(weight.repeat(len(gradient), 1, 1))


class Packed(torch.nn.Module):
    """A layer that stores its weight packed, like those of gptqmodel."""

    def __init__(self, product: Any, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.register_buffer("qweight", torch.zeros(inputs, outputs, dtype=torch.int8))
        self._product = product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(self.qweight, x)
