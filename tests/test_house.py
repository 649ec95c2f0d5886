"""Checks the shape of the whole tree: class names, base classes, circles of imports, folders, code
without a use. The few exceptions are named with their reasons."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

from every import every

ROOT = Path(__file__).parent.parent
PACKAGES = ("qtui", "qtui_core")
MOST_LINES = 700
LEAST_LINES_TWICE = 4

# Lines of each room, only ever lowered: a change that makes a room smaller lowers its number.
CEILINGS = {
    "qtui/cli": 3427,
    "qtui/engine": 6210,
    "qtui/report": 6426,
    "qtui/screen": 7646,
    "qtui/tui": 20744,
    "qtui_core/conformance": 1720,
    "qtui_core/formats, schemes": 2696,
    "qtui_core/inspection, evaluation": 6194,
    "qtui_core/lab": 5192,
    "qtui_core/memory": 16985,
    "qtui_core/models, loading, packed": 4896,
    "qtui_core/quant": 6198,
    "qtui_core/roofline": 799,
    "qtui_core/training": 4398,
    "the rest": 4694,
}


@cache
def trees() -> dict[str, ast.Module]:
    """Module name -> its syntax tree."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """Every node of a module's tree."""
    return tuple(ast.walk(trees()[module]))


def classes() -> list[tuple[str, ast.ClassDef]]:
    """Every class of a module, with the module."""
    return [
        (module, node)
        for module, tree in trees().items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]


def name_of(node: ast.expr) -> str:
    """The last part of a name: "Panel" of base.Panel and of Panel[int]."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def bases_with_one_subclass() -> set[str]:
    """Base classes that only one other class extends, without errors that are caught."""
    named = {node.name for _, node in classes()}
    subclasses = Counter(
        name for _, node in classes() for name in {name_of(base) for base in node.bases} & named
    )
    caught: set[str] = set()
    for module in trees():
        for node in nodes(module):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                caught.update(map(name_of, kinds))
    return {name for name, count in subclasses.items() if count == 1} - caught


@cache
def mentions() -> set[str]:
    """Every word that code of the product uses, whether as a name or in a string that is no
    docstring: keys and rows of tables name functions so. Imports are no use."""
    found: set[str] = set()
    for module in trees():
        documents = {
            id(node.body[0].value)
            for node in nodes(module)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in nodes(module):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and id(node) not in documents:
                found.update(re.findall(r"\w+", str(node.value)))
    return found


def without_use() -> set[str]:
    """Functions, methods and classes that nothing in the product mentions. A method of a class that
    extends one of a library is left out: the library may call it."""
    ours = {node.name: node for _, node in classes()} | {"Generic": None, "Protocol": None}

    def of_a_library(node: ast.ClassDef | None) -> bool:
        bases = [] if node is None else node.bases
        return any(
            isinstance(base, ast.Attribute)  # as in click.Group
            or name_of(base) not in ours
            or of_a_library(ours[name_of(base)])
            for base in bases
        )

    found = set()
    for tree in trees().values():
        for node in tree.body:
            inner = node.body if isinstance(node, ast.ClassDef) and not of_a_library(node) else []
            for each in (node, *inner):
                if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(each.name)
    unused = {name for name in found if not name.startswith("__")} - mentions()
    return {name for name in unused if name.removeprefix("action_") not in mentions()}


class _Renamed(ast.NodeTransformer):
    """Names in the order in which they first appear, so that two functions that differ in names
    alone are the same."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._names.setdefault(node.id, f"_{len(self._names)}"), ast.Load())

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self._names.setdefault(node.arg, f"_{len(self._names)}"))


def functions_that_stand_twice() -> list[list[str]]:
    """Functions of four lines or more whose statements are the same but for the names of
    variables."""
    shapes: dict[tuple[type, ...], list[tuple[str, list[ast.stmt]]]] = {}
    for module in trees():
        for node in nodes(module):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            said = ast.get_docstring(node) is not None
            body = node.body[said:]
            if body and (body[-1].end_lineno or 0) - body[0].lineno + 1 >= LEAST_LINES_TWICE:
                shape = tuple(type(part) for part in ast.walk(ast.Module(body, [])))
                shapes.setdefault(shape, []).append((f"{module}.{node.name}", body))
    found: dict[str, list[str]] = {}
    for alike in shapes.values():
        for name, body in alike if len(alike) > 1 else ():
            copy = ast.parse(ast.unparse(ast.Module([*body], [])))
            found.setdefault(ast.dump(_Renamed().visit(copy)), []).append(name)
    return [names for names in found.values() if len(names) > 1]


def imports(module: str, tree: ast.Module) -> set[str]:
    """The modules that are imported at run time, without those for types only."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and name_of(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in trees() else node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return {name for name in found if name in trees() and name != module}


def circles() -> list[set[str]]:
    """Modules that import each other in a circle (Tarjan's strongly connected components)."""
    edges = {module: sorted(imports(module, tree)) for module, tree in trees().items()}
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in edges[module]:
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for module in edges:
        if module not in number:
            visit(module)
    return found


def rooms() -> dict[str, int]:
    """Room -> the lines of its Python files: a row of CEILINGS, or "the rest"."""
    room_of = {
        f"{package}/{folder}": room
        for room in CEILINGS
        for package, _, folders in [room.partition("/")]
        for folder in folders.split(", ")
    }
    found = dict.fromkeys(CEILINGS, 0)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            folder = "/".join(path.relative_to(ROOT).parts[:2])
            room = room_of.get(folder, "the rest")
            found[room] += len(path.read_text(encoding="utf-8").splitlines())
    return found


def check_a_base_class_has_two_subclasses() -> None:
    built = {
        # Also built themselves; the subclass stands where the class may, and does something else.
        "CachingAllocator": "ExpandableAllocator maps pages where this one takes whole segments",
        "CurvePicture": "RunPicture draws measured lines over the same curve",
        "EngineClient": "EstimatorClient answers the same requests from two processes",
        "Segment": "_Piece of a map has the bounds that the plan of each scheme requires besides",
        "SubjectRequest": "PlanRequest asks about a plan besides, and three requests extend it",
        "TextPicture": "GranularityBars takes keys that ask for another granularity",
        "Tracker": "CpuTracker corrects what a dispatch mode does not see on a CPU",
    }
    assert bases_with_one_subclass() == built.keys()


def check_nothing_is_there_for_tests_alone() -> None:
    """What only tests call lives under tests/support; what nothing calls is removed."""
    of_the_library = {
        # Verbs and results that README or the docstring of a package offers to programs.
        "scale_at", "unpacked_codes",
    }  # fmt: skip
    assert without_use() == of_the_library


def check_no_function_stands_twice() -> None:
    assert functions_that_stand_twice() == []


def check_a_class_name_stands_for_one_class() -> None:
    """Including nested classes."""
    every_node = (node for module in trees() for node in nodes(module))
    counts = Counter(node.name for node in every_node if isinstance(node, ast.ClassDef))
    assert [name for name, count in counts.items() if count > 1] == []


def check_no_modules_import_each_other() -> None:
    assert circles() == []


def check_a_room_is_below_its_ceiling() -> None:
    lines = rooms()
    assert {room: lines[room] for room, most in CEILINGS.items() if lines[room] > most} == {}


def check_a_file_is_as_long_as_one_idea() -> None:
    long = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES
    }
    assert long == set()


def test_the_house() -> None:
    """One test, so that one worker reads the files."""
    every(
        (
            check_a_base_class_has_two_subclasses,
            check_nothing_is_there_for_tests_alone,
            check_no_function_stands_twice,
            check_a_class_name_stands_for_one_class,
            check_no_modules_import_each_other,
            check_a_room_is_below_its_ceiling,
            check_a_file_is_as_long_as_one_idea,
        ),
        lambda check: check(),
    )
