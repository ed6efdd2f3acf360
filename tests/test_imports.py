"""Imports go down only, and what is heavy is imported late."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the top down; a room may import those below it, and files of its own.
ROOMS = (
    {"__main__"},
    {"commands"},
    {"views"},
    {"run"},
    {"reading"},
    {"exports"},
    {"lanes"},
    {"sources", "processors"},
    {"ledger", "results", "manifest", "flags"},
    {"ledger_file", "fields"},
    {"folder", "settings"},
    {"items"},
    {"errors"},
    {"__init__"},
)
RANKS = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}

# Imported by others of their room, and by them only inside of functions.
IMPORTED_LATE = {"processors/tallies.py", "processors/bins.py"}
TORCH = {"lanes/device.py", "lanes/gpus.py"}
AIOHTTP = {"sources/http.py", "sources/receive.py", "views/web.py", "commands/origin.py"}


@dataclass(frozen=True)
class Import:
    file: str  # below app/
    module: str  # absolute
    at_start: bool  # it runs when the file is imported
    checked_only: bool  # it is for type checkers

    @property
    def is_ours(self) -> bool:
        return self.module.split(".")[0] == "app"


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "app").rglob("*.py")):
        yield path.relative_to(ROOT / "app").as_posix(), ast.parse(path.read_text())


def imports() -> Iterator[Import]:
    for file, tree in trees():
        yield from _imports(file, tree, at_start=True, checked_only=False)


def _imports(file: str, node: ast.AST, *, at_start: bool, checked_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, alias.name, at_start, checked_only)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{file}: imports are absolute"
            yield from (Import(file, module, at_start, checked_only) for module in _modules(child))
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            checked = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            start = at_start and not inside and not checked
            yield from _imports(file, child, at_start=start, checked_only=checked_only or checked)


def _modules(node: ast.ImportFrom) -> set[str]:
    """`from app.lanes import lane` is an import of `app.lanes.lane`; `from app.items import Item` of `app.items`."""
    assert node.module is not None
    return {
        name if _path(name).exists() else node.module
        for name in (f"{node.module}.{alias.name}" for alias in node.names)
    }


def _path(module: str) -> Path:
    path = ROOT / Path(*module.split("."))
    return path if path.is_dir() else path.with_suffix(".py")


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def _module(file: str) -> str:
    return ".".join(["app", *Path(file).with_suffix("").parts]).removesuffix(".__init__")


ALL = list(imports())


def test_every_file_has_its_place():
    rooms = {file.split("/")[0].removesuffix(".py") for file, _ in trees()}
    assert rooms <= set(RANKS), "a new room needs a place in the order, and in the design"


@pytest.mark.parametrize("file", sorted({one.file for one in ALL if one.is_ours}))
def test_imports_go_down_only(file):
    room = _room(_module(file))
    wrong = [
        one.module
        for one in ALL
        if one.file == file and one.is_ours and _room(one.module) != room and RANKS[_room(one.module)] <= RANKS[room]
    ]
    assert not wrong


def test_no_two_files_import_each_other_at_start():
    graph: dict[str, set[str]] = {}
    for one in ALL:
        if one.is_ours and one.at_start:
            graph.setdefault(_module(one.file), set()).add(one.module)
    TopologicalSorter(graph).prepare()


def test_views_are_imported_by_the_entry_alone():
    assert {one.file for one in ALL if _is_view(one) and not one.file.startswith("views/")} <= {"__main__.py"}


def _is_view(one: Import) -> bool:
    return one.is_ours and _room(one.module) == "views"


def test_only_the_device_and_processors_import_torch_and_never_at_start():
    torch = [one for one in ALL if one.module.split(".")[0] == "torch"]
    assert {one.file for one in torch if not one.file.startswith("processors/")} <= TORCH
    assert {one.file for one in torch if one.at_start} <= IMPORTED_LATE
    late = {_module(file) for file in IMPORTED_LATE}
    assert {one.file for one in ALL if one.module in late and one.at_start} <= IMPORTED_LATE


def test_only_the_rooms_of_http_import_aiohttp():
    assert {one.file for one in ALL if one.module.split(".")[0] == "aiohttp"} <= AIOHTTP


def test_a_lane_knows_nothing_of_manifests_and_ledgers():
    unknown = {"manifest", "ledger", "ledger_file", "reading", "exports", "run"}
    assert not [one for one in ALL if one.file.startswith("lanes/") and one.is_ours and _room(one.module) in unknown]


def _files_with_attribute(*names: str) -> set[str]:
    return {
        file
        for file, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in names
    }


def test_only_one_file_touches_a_transport():
    touching = _files_with_attribute("set_protocol", "pause_reading", "resume_reading", "transport")
    assert touching == {"sources/receive.py"}


def test_only_the_entry_reads_arguments_and_environment():
    assert _files_with_attribute("argv", "environ", "getenv") <= {"__main__.py"}


@pytest.mark.parametrize("module", ["app.__main__", "app.run", "app.lanes.inline", "app.views.watch"])
def test_starting_up_does_not_import_torch(module):
    late = ("torch", "numpy", "pyarrow")
    script = f"import sys, {module}; print([name for name in {late!r} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert found.stdout.strip() == "[]"
