"""Operations on several tensors: products, look-ups, concatenations, and what GPUs that share
layers send each other."""

from __future__ import annotations

from functools import reduce
from typing import Final

from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.tape.tensors import Gradients, Tensor, wider

SUM: Final = Label("all_reduce", Component.TEMPORARIES)
PARTS: Final = Label("all_gather_into_tensor", Component.TEMPORARIES)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    inputs: int,
    outputs: int,
    label: Label | str = "mm",
    *,
    transposed: bool = False,
) -> Tensor:
    """`F.linear(x, weight, bias)`, or `torch.addmm(bias, x, weight)` if the weight is stored
    `transposed` (Conv1D): `[tokens, inputs]` to `[tokens, outputs]`. On autocast's 16-bit list,
    which casts the last argument first.

    The input is saved only if the weight requires a gradient, the weight only if the input does.
    Both gradients are views, as tensors have three dimensions and weights are transposed.
    """
    tape = x.tape
    if bias is not None and not transposed:
        bias = bias.cast_low()
    weight = weight.cast_low()
    x = x.cast_low()
    if bias is not None and transposed:
        bias = bias.cast_low()
    tokens = x.elements // inputs
    x_wanted, weight_wanted = x.requires_grad, weight.requires_grad
    flat = x.flat
    # Generated code computes gradients in the order of the arguments' names: (mat1, mat2, self) of
    # addmm, (mat2, self) of mm.
    first = bias is not None

    def backward(gradient: Tensor) -> Gradients:
        dtype = gradient.dtype
        if first:
            of_x = tape.new(tokens * inputs, dtype, "mm", view=not flat) if x_wanted else None
        of_weight = tape.new(inputs * outputs, dtype, "mm", view=True) if weight_wanted else None
        if not first:
            of_x = tape.new(tokens * inputs, dtype, "mm", view=not flat) if x_wanted else None
        return of_x, of_weight, gradient  # the engine sums that of the bias

    node = tape.node("mm" if bias is None else "addmm", (x, weight, bias), backward)
    tape.save(node, x if weight_wanted else None, weight if x_wanted else None)
    return tape.output(node, tape.new(tokens * outputs, wider(x.dtype, weight.dtype), label))


def bmm(a: Tensor, b: Tensor, elements: int) -> Tensor:
    """`torch.matmul` of batches of matrices, with a result of `elements`. On autocast's 16-bit
    list."""
    b = b.cast_low()
    a = a.cast_low()
    return _product("bmm", a, b, elements)


def grouped_product(
    x: Tensor, weight: Tensor, offsets: Tensor, outputs: int, inputs: int
) -> Tensor:
    """`torch.nn.functional.grouped_mm` of rows sorted by expert: `[rows, inputs]` to `[rows,
    outputs]`, in the weight's dtype, to which `x` is cast. Autocast does not change it."""
    x = x.to(weight.dtype)
    size = x.elements // inputs * outputs
    return _product("_grouped_mm", x, weight, size, view=False, saved=offsets)


def _product(
    name: str,
    a: Tensor,
    b: Tensor,
    elements: int,
    *,
    view: bool = True,
    saved: Tensor | None = None,
) -> Tensor:
    """A product of two tensors, each of which is saved only if the other requires a gradient. The
    gradient of the second is made first; `view`: whether that of the first is a view."""
    tape, a_size, b_size = a.tape, a.elements, b.elements
    a_wanted, b_wanted = a.requires_grad, b.requires_grad

    def backward(gradient: Tensor) -> Gradients:
        dtype = gradient.dtype
        of_b = tape.new(b_size, dtype, name, view=True) if b_wanted else None
        of_a = tape.new(a_size, dtype, name, view=view) if a_wanted else None
        return of_a, of_b

    node = tape.node(name, (a, b), backward)
    tape.save(node, a if b_wanted else None, b if a_wanted else None, saved)
    return tape.output(node, tape.new(elements, wider(a.dtype, b.dtype), name))


def convolution(x: Tensor, weight: Tensor, elements: int) -> Tensor:
    """`F.conv1d` without a bias, with a result of `elements`. On autocast's 16-bit list; what it is
    given lives until it returns."""
    kernel, columns = weight.cast_low(), x.cast_low()
    tape, name, sizes = x.tape, "convolution_backward", (x.elements, weight.elements)
    wanted, dtype = (x.requires_grad, weight.requires_grad), columns.dtype

    def backward(gradient: Tensor) -> Gradients:
        pairs = zip(sizes, wanted, strict=True)
        return tuple(tape.new(size, dtype, name) if asked else None for size, asked in pairs)

    node = tape.node("convolution", (columns, kernel), backward)
    tape.save(node, columns, kernel)
    return tape.output(node, tape.new(elements, dtype, "convolution"))


def solve_triangular(system: Tensor, right: Tensor) -> Tensor:
    """`torch.linalg.solve_triangular(system, right)` with ones on the diagonal: saves the system
    and the result. The gradient of the system is cut to its triangle."""
    tape, dtype, name = system.tape, system.dtype, "linalg_solve_triangular"
    full, elements = system.elements, right.elements
    wanted = system.requires_grad

    def backward(gradient: Tensor) -> Gradients:
        of_right = tape.new(elements, dtype, name)
        if not wanted:
            return None, of_right
        product = tape.new(full, dtype, "bmm")
        _negative = tape.new(full, dtype, "neg")
        del product
        return tape.new(full, dtype, "tril"), of_right

    node = tape.node(name, (system, right), backward)
    result = tape.new(elements, dtype, name)
    tape.save(node, system, result)
    return tape.output(node, result)


def embedding(table: Tensor, indices: Tensor, columns: int, rows: int | None = None) -> Tensor:
    """`F.embedding(indices, table)`: `[indices, columns]`. Its gradient is dense, of the size of
    the table. If the table is one GPU's part of `rows`, the gradient has the size of all rows, and
    the part is a view of it (embedding_dense_backward of a DTensor)."""
    tape, own = table.tape, table.elements
    size = own if rows is None else rows * columns

    def backward(gradient: Tensor) -> Gradients:
        whole = tape.new(size, gradient.dtype, "embedding_dense_backward")
        return (whole if size == own else whole.alias(own),)

    node = tape.node("embedding", (table,), backward)
    tape.save(node, indices)
    return tape.output(node, tape.new(indices.elements * columns, table.dtype, "embedding"))


def cat(*parts: Tensor) -> Tensor:
    """`torch.cat`. The gradients of the parts are views of the whole gradient."""
    tape, sizes = parts[0].tape, tuple(x.elements for x in parts)

    def backward(gradient: Tensor) -> Gradients:
        dtype, buffer = gradient.dtype, gradient.buffer
        return tuple(Tensor(elements, dtype, buffer, view=True) for elements in sizes)

    node = tape.node("cat", parts, backward)
    return tape.output(node, tape.new(sum(sizes), reduce(wider, [x.dtype for x in parts]), "cat"))


def write(base: Tensor, source: Tensor, elements: int, *, adds: bool = False) -> Tensor:
    """`base[..., a:b].copy_(source)`, or `add_`, a part of `elements`, to which `source` is
    broadcast. Returns the base with its new history.

    Its backward function copies the whole gradient, clones the source's part, makes zeros for the
    overwritten part of the base, if the base had a history, and casts that of the source
    (CopySlices and CopyBackwards in torch/csrc/autograd/functions/tensor.cpp).
    """
    tape, full, base_wanted = base.tape, base.elements, base.requires_grad
    given = source.dtype

    def backward(gradient: Tensor) -> Gradients:
        result = tape.new(full, gradient.dtype, "new_empty_strided")
        of_source = tape.new(elements, gradient.dtype, "clone")
        if base_wanted and not adds:
            _overwritten = tape.new(elements, gradient.dtype, "zeros_like")
        if given != gradient.dtype and not adds:
            of_source = tape.new(elements, given, "_to_copy")
        return result if base_wanted else None, of_source

    node = tape.node("copy_", (base, source), backward)
    return tape.output(node, Tensor(full, base.dtype, base.buffer))


def all_reduced(x: Tensor) -> Tensor:
    """The sum of the partial results of all GPUs, in a new tensor (funcol.all_reduce). Each part
    gets the whole gradient."""
    return x.op("all_reduce", made=SUM)


def gathered(x: Tensor, elements: int, label: Label | str) -> Tensor:
    """The columns of all GPUs, `elements` together: they arrive one GPU after the other, and are
    then concatenated (funcol.all_gather_tensor). Each GPU copies its columns of the gradient."""
    tape, own, dtype = x.tape, x.elements, x.dtype
    node = tape.node("all_gather_into_tensor", (x,), lambda _: (tape.new(own, dtype, "clone"),))
    _parts = tape.new(elements, dtype, PARTS)
    return tape.output(node, tape.new(elements, dtype, label))
