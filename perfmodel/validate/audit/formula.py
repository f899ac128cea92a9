"""Arithmetic as a claim prints it: + - * / **, parentheses, and a few functions; nothing else is evaluated."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from perfmodel.errors import SpecError
from perfmodel.validate.audit.figures import Printed

__all__ = ["Formula", "formula_names", "formula_range", "formula_value"]

_MOST_CHARACTERS: Final = 500
_MOST_INPUTS: Final = 8
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "min": np.minimum,
    "max": np.maximum,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "ceil": np.ceil,
    "abs": np.abs,
}


def _parsed(text: str) -> ast.expr:
    if len(text) > _MOST_CHARACTERS:
        raise _fault(text[:40] + "...", f"at most {_MOST_CHARACTERS} characters")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _fault(text, "an expression of + - * / ** and parentheses") from error
    for node in ast.walk(tree):
        _check(node, text)
    return tree


def _check(node: ast.AST, text: str) -> None:
    match node:
        case ast.Constant(value=bool()) | ast.Constant(value=complex()):
            raise _fault(text, "numbers")
        case ast.Constant(value=int() | float()) | ast.Name() | ast.Load() | ast.USub() | ast.UAdd() | ast.operator():
            if isinstance(node, ast.operator) and type(node) not in _OPERATORS:
                raise _fault(text, "the operators + - * / **")
        case ast.BinOp() | ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            pass
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            n_wanted = 2 if name in ("min", "max") else 1
            if len(node.args) != n_wanted:
                raise _fault(text, f"{n_wanted} argument{'s' if n_wanted > 1 else ''} of {name}")
        case _:
            raise _fault(text, f"numbers, names, + - * / **, and the functions {', '.join(_FUNCTIONS)}")


def _fault(text: str, expected: str) -> SpecError:
    return SpecError("a formula cannot be used", got=repr(text), expected=expected)


def formula_names(text: str) -> tuple[str, ...]:
    """Return the names that a formula uses, in alphabetical order; raises SpecError where it is none.

    >>> formula_names("base * (1 - alpha)")
    ('alpha', 'base')
    """
    return tuple(sorted({n.id for n in ast.walk(_parsed(text)) if isinstance(n, ast.Name)} - _FUNCTIONS.keys()))


def formula_value(text: str, values: Mapping[str, float | NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the value of a formula, elementwise for arrays; NaN or infinity where it has none.

    Raises SpecError for an unknown name and for anything but arithmetic.

    >>> float(formula_value("a / b - 1", {"a": 184.2, "b": 116.8}).round(3))
    0.577
    """
    tree = _parsed(text)
    missing = sorted(set(formula_names(text)) - values.keys())
    if missing:
        raise SpecError("a formula uses names that are not given", got=", ".join(missing), where=repr(text))
    with np.errstate(all="ignore"):
        return np.asarray(_value(tree, values), dtype=np.float64)


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return np.float64(value)  # type: ignore[arg-type]
        case ast.Name(id=name):
            return np.asarray(values[name], dtype=np.float64)
        case ast.UnaryOp(op=op, operand=operand):
            inner = _value(operand, values)
            return -inner if isinstance(op, ast.USub) else inner
        case ast.BinOp(left=left, op=operator, right=right):
            return _OPERATORS[type(operator)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_value(argument, values) for argument in args))
        case _:  # held by _check
            raise _fault(ast.unparse(node), "arithmetic")


def formula_range(text: str, inputs: Mapping[str, Printed]) -> tuple[float, float, float]:
    """Return (value, least, greatest) of a formula whose inputs are printed to a last digit.

    Each input lies within half a unit of its last digit. The ends are those over all corners, which is exact where the
    formula rises or falls in each input over so small a range.
    """
    names: Sequence[str] = tuple(inputs)
    if len(names) > _MOST_INPUTS:
        raise SpecError("a formula has too many inputs", got=str(len(names)), expected=f"at most {_MOST_INPUTS}")
    value = float(formula_value(text, {name: figure.value for name, figure in inputs.items()}))
    if not names:
        return value, value, value
    ends = [(f.value - 0.5 * f.resolution, f.value + 0.5 * f.resolution) for f in inputs.values()]
    corners = np.array(list(product(*ends)), dtype=np.float64).reshape(-1, len(names))
    found = formula_value(text, {name: corners[:, i] for i, name in enumerate(names)})
    return value, float(np.min(found)), float(np.max(found))


def _sound(text: str) -> str:
    try:
        formula_names(text)
    except SpecError as error:
        raise ValueError(str(error).replace("\n  ", "; ")) from error
    return text


Formula = Annotated[str, AfterValidator(_sound)]
"""Text of a specification that is a formula."""
