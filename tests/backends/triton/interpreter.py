# pyright: basic, reportMissingImports=false
"""Triton's interpreter, which works out the same things for every operation and every call, and here does so once.

What it computes is as before: types of shapes, dtypes of arrays, and which functions of the language it stands in for.
Where it would throw an answer away, it does not work it out.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from functools import cache
from typing import Any


def hasten() -> None:
    """Let it remember what depends on nothing but a shape, a dtype or a module."""
    import numpy
    from triton.language import core, semantic
    from triton.runtime import interpreter

    _sanitize_nothing(interpreter)
    type_of, np_dtype_of, patch = core._type_for_tuple_values, interpreter._get_np_dtype, interpreter._patch_attr
    block_of, constexpr, shape_of = core.block_type.__init__, core.constexpr, core.tuple

    @cache
    def block(element_ty: Any, shape: tuple[int, ...]) -> Any:
        made = core.block_type.__new__(core.block_type)
        block_of(made, element_ty, list(shape))
        return made

    def init_block(self: Any, element_ty: Any, shape: Any) -> None:
        plain = tuple([each.value if type(each) is constexpr else each for each in shape])
        if {*map(type, plain)} != {int}:
            block_of(self, element_ty, shape)
        elif type(element_ty) is core.dtype:
            self.__dict__.update(block(element_ty, plain).__dict__)
        else:
            # Of pointers there are many types.
            self.__dict__.update(block(core.int1, plain).__dict__)
            self.element_ty, self.name = element_ty, f"<{self.shape}, {element_ty}>"

    @cache
    def constants(shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
        values = [constexpr(each) for each in shape]
        return constexpr(math.prod(shape)), values, type_of(values)

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.numel, values, types = constants(tuple(type.shape.values) if type.is_block() else ())
        self.handle, self.type, self.dtype, self.shape = handle, type, type.scalar, shape_of(values, types)

    @cache
    def np_dtype_of_scalar(scalar: Any) -> Any:
        return np_dtype_of(scalar)

    def get_np_dtype(dtype: Any) -> Any:
        scalar = dtype.element_ty if isinstance(dtype, core.block_type) else dtype
        return np_dtype_of(scalar) if isinstance(scalar, core.pointer_type) else np_dtype_of_scalar(scalar)

    @cache
    def builtins_of(module: Any) -> list[tuple[str, Any]]:
        return [(name, each) for name, each in inspect.getmembers(module) if core.is_builtin(each)]

    def patch_builtin(module: Any, builder: Any, scope: Any) -> None:
        for name, each in builtins_of(module):
            # A kernel that is called by another finds them in place.
            if getattr(module, name) is each:
                patch(module, name, each, builder, scope)

    @cache
    def languages(function: Any) -> list[Any]:
        return [each for each in function.__globals__.values() if each is core or each is interpreter.tl]

    asserted, patch_all = {each: each.static_assert for each in (core, interpreter.tl)}, interpreter._patch_lang

    def patch_lang(function: Any) -> Any:
        # As above: all of it is put in place at once, and taken away when the outermost kernel ends.
        if all(each.static_assert is not asserted[each] for each in languages(function)):
            return interpreter._LangPatchScope()
        return patch_all(function)

    broadcast = semantic.TritonSemantic.broadcast_impl_value

    def spread(self: Any, value: Any, shape: tuple[int, ...]) -> Any:
        handle, scalar = value.handle, value.type.scalar
        if value.type.is_block():
            data = numpy.broadcast_to(handle.data, shape)
        else:
            data = numpy.full(shape, handle.data, dtype=get_np_dtype(handle.dtype))
        return self.tensor(interpreter.TensorHandle(data, handle.dtype.scalar), core.block_type(scalar, shape))

    def broadcast_unlike(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        one, other = (tuple(each.type.shape.values) if each.type.is_block() else () for each in (lhs, rhs))
        if one == other:
            return lhs, rhs
        if one and other and (len(one) != len(other) or any(1 != a != b != 1 for a, b in zip(one, other, strict=True))):
            return broadcast(self, lhs, rhs)
        shape = tuple(map(max, one, other)) if one and other else one or other
        return lhs if one == shape else spread(self, lhs, shape), rhs if other == shape else spread(self, rhs, shape)

    semantic.TritonSemantic.broadcast_impl_value = broadcast_unlike
    interpreter._patch_lang = patch_lang
    core.block_type.__init__ = init_block
    core.tensor.__init__ = init_tensor
    interpreter._get_np_dtype = get_np_dtype
    interpreter._patch_builtin = patch_builtin


def _sanitize_nothing(interpreter: Any) -> None:
    """Whether a sum of integers overflows is worked out and, but when debugging, not looked at."""
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
