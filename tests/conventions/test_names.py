"""Conventions that no tool checks: units in names, one word per concept, docstrings, no state, no coefficients."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "perfmodel"
FILES = sorted(PACKAGE.rglob("*.py"))
CORE = ("specs", "work", "cost", "step")

UNIT = re.compile(
    r"^(n|d)_\w+$"  # counts and widths
    r"|_(s|bytes|bits|flop|tokens|frac|share|hz|w|j|gib|sd|params|copies|cycles|ipc)$"
    r"|(^|_)(bytes|flop|tokens|s|usd|cycles)_per_\w+$"
)
ALLOWED = {
    "batch": "sequences, the word that everybody uses",
    "flop": "a count of flop is called flop",
    "rows": "a count of rows, as the kernel's user says it",
    "min_rows": "likewise",
    "depth": "links of a serial chain, counted in the kernel's own unit",
    "effort": "a ratio to the usual",
    "saturation": "a ratio of two times",
    "knee": "an exponent",
    "scatter": "a relative standard deviation, the word of the calibration files",
    "centre": "its unit is that of the parameter that the rule is for",
    "widening": "a ratio of two standard deviations",
    "first_attended": "a token's place",
    "last_attended": "a token's place",
    "token_budget": "tokens, the schedulers' word",
    "acceptance_length": "tokens, the papers' word",
    "max_concurrency": "sequences, as vLLM's log prints it",
    "utilization": "vLLM's flag",
    "gpu_memory_utilization": "vLLM's flag",
    "swa_full_ratio": "SGLang's flag",
    "request_rate": "the benchmarks' flag",
    "value": "its unit stands in the type around it",
    "low": "likewise",
    "high": "likewise",
}
"""Names of numbers without a unit, each with the reason."""

MUTATORS = {"append", "extend", "add", "update", "setdefault", "pop", "popitem", "clear", "insert", "remove", "discard"}


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def number_fields(file: Path) -> Iterator[tuple[str, str]]:
    """Yield (class, field) of every field that is a plain float or an array: unit types say their unit themselves."""
    for node in ast.walk(tree(file)):
        if not isinstance(node, ast.ClassDef):
            continue
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                kind = ast.unparse(statement.annotation).removesuffix(" | None")
                if kind in ("float", "Num", "Floats") or re.fullmatch(r"Annotated\[float, Field\(.*\)\]", kind):
                    yield node.name, statement.target.id


def arguments(file: Path) -> Iterator[tuple[str, str]]:
    """Yield (function, argument) of every public function's plain numbers."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            for argument in (*node.args.args, *node.args.kwonlyargs):
                if argument.annotation is not None and ast.unparse(argument.annotation) in ("float", "Num", "Floats"):
                    yield node.name, argument.arg


@pytest.mark.parametrize("package", CORE)
def test_numbers_have_their_unit_in_the_name(package: str) -> None:
    found = [
        (f.name, *field) for f in FILES if f.relative_to(PACKAGE).parts[0] == package for field in number_fields(f)
    ]
    assert found
    assert [entry for entry in found if not UNIT.search(entry[-1]) and entry[-1] not in ALLOWED] == []


def test_the_allow_list_is_needed() -> None:
    names = {name for file in FILES for _, name in number_fields(file)}
    assert set(ALLOWED) <= names


@pytest.mark.parametrize("package", ["cost", "step"])
def test_arguments_have_their_unit_in_the_name(package: str) -> None:
    """Besides the fields' reasons: a quantile, an exponent (skew is one) and a fraction speak for themselves."""
    further = {"count", "fraction", "exponent", "quantile", "skew", "value", "rel_sd"}
    found = [(f.name, *a) for f in FILES if f.relative_to(PACKAGE).parts[0] == package for a in arguments(f)]
    assert found
    assert [
        entry for entry in found if not UNIT.search(entry[-1]) and entry[-1] not in (ALLOWED.keys() | further)
    ] == []


def identifiers(file: Path) -> Iterator[str]:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


@pytest.mark.parametrize("file", [f for f in FILES if f.parent.name not in ("importers", "cli")], ids=module_name)
def test_one_word_per_concept(file: Path) -> None:
    """flop is a count and flop_per_s a rate: `flops` is either. Times are ttft_s and tpot_s, never milliseconds.

    Importers speak the words of foreign files, and flags those of users.
    """
    bad = re.compile(r"flops|_ms$|_us$|_gb$|_mb$|latency_ms|tok_per_s", re.IGNORECASE)
    assert sorted({name for name in identifiers(file) if bad.search(name)}) == []


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_public_names_exist_and_are_explained(file: Path) -> None:
    """Every name of `__all__` is there; functions, classes, their public methods and properties have a docstring."""
    if file.name == "__main__.py":
        return
    module = importlib.import_module(module_name(file))
    defined = {node.name: node for node in tree(file).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    specs = file.relative_to(PACKAGE).parts[0] == "specs"
    for name in getattr(module, "__all__", ()):
        assert hasattr(module, name), name
        node = defined.get(name)
        if node is None:
            continue
        assert ast.get_docstring(node) or (specs and isinstance(node, ast.ClassDef)), name
        for inner in node.body if isinstance(node, ast.ClassDef) and not node.bases else ():
            if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                assert ast.get_docstring(inner), f"{name}.{inner.name}"


def mutable(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp):
        return True
    return isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "dict",
        "list",
        "set",
        "defaultdict",
        "Counter",
        "deque",
    )


def module_variables(file: Path) -> Iterator[str]:
    for node in tree(file).body:
        if isinstance(node, ast.Assign) and mutable(node.value):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and mutable(node.value) and isinstance(node.target, ast.Name):
            yield node.target.id


@pytest.mark.parametrize("file", [f for f in FILES if f.relative_to(PACKAGE).parts[0] != "cli"], ids=module_name)
def test_modules_have_no_state(file: Path) -> None:
    """Nothing is global, and no function changes a table of its module. (typer's commands register at import.)"""
    tables = set(module_variables(file))
    assert all(name == "__all__" or name.lstrip("_").isupper() for name in tables)
    for function in ast.walk(tree(file)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            assert not isinstance(node, ast.Global)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
                assert ast.unparse(node.func.value) not in tables, ast.unparse(node)
            for target in changed(node):
                assert ast.unparse(target) not in tables, ast.unparse(node)


def changed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what an assignment or deletion changes an item of."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    yield from (target.value for target in targets if isinstance(target, ast.Subscript))


@pytest.mark.parametrize("file", [f for f in FILES if f.parent.name == "cost"], ids=module_name)
def test_no_coefficient_stands_in_a_cost_law(file: Path) -> None:
    """Laws hold 0, 1 and the 2 of a ring's two passes; 1e-300 keeps 0 / 0 finite. All else is data."""
    numbers = {
        node.value
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
    }
    assert numbers <= {0, 1, 2, 1e-300}


CLOCK_TEXT = "perfmodel.specs.arithmetic"
"""Prints a clock in GHz, for which units.py has no text."""


@pytest.mark.parametrize(
    "file",
    [f for f in FILES if f.relative_to(PACKAGE).parts[0] in CORE and module_name(f) != CLOCK_TEXT],
    ids=module_name,
)
def test_powers_of_1000_and_1024_have_one_home(file: Path) -> None:
    """1e9 and 2**30 are units.py's. Limits that only refuse absurd sizes are no unit."""
    text = file.read_text(encoding="utf-8")
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Constant) and type(node.value) is float:
            assert node.value not in (1e6, 1e9, 1e12, 1e-3, 1e-6), f"line {node.lineno}"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            assert ast.unparse(node) not in ("2 ** 30", "2.0 ** 30", "1024 ** 3", "10 ** 9", "1000 ** 3"), node.lineno
    assert "tflops" not in text.lower().replace("tflops/s", "")


@pytest.mark.parametrize(
    "file", [f for f in FILES if f.relative_to(PACKAGE).parts[0] in ("work", "cost")], ids=module_name
)
def test_numbers_that_may_be_arrays_are_not_asked_which_is_larger(file: Path) -> None:
    """`math.*` and the builtins max, min and int break on arrays: functions of a Num do not call them on their own."""
    for node in ast.walk(tree(file)):
        if not isinstance(node, ast.FunctionDef):
            continue
        numbers = {
            a.arg
            for a in (*node.args.args, *node.args.kwonlyargs)
            if a.annotation is not None and ast.unparse(a.annotation) in ("Num", "Num | None")
        }
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in (
                "max",
                "min",
                "int",
                "ceil",
                "log",
                "sqrt",
                "float",
            ):
                used = {ast.unparse(argument) for argument in call.args}
                assert not used & numbers, f"{node.name}: {ast.unparse(call)}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda path: path.stem)
def test_examples_of_the_help_fit_a_terminal_of_80_columns(path: Path) -> None:
    docs = [ast.get_docstring(node) or "" for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]
    lines = [line for doc in docs for block in doc.split("```")[1::2] for line in block.splitlines()]
    assert [line for line in lines if len(line) > 76] == []
