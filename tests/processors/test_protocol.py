"""Loading a processor, and every way in which it may fail."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.errors import UsageError
from app.items import Item
from app.processors import BUILT_IN, DeviceInfo, load

ROOT = Path(__file__).parents[2]
ITEM = Item("x", "file:///x")
CPU = DeviceInfo("cpu", None)
_numbers = itertools.count()

Write = Callable[[str], str]


@pytest.fixture(autouse=True)
def _path_as_before() -> Iterator[None]:
    before = sys.path.copy()
    yield
    sys.path[:] = before


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a module that no other test has, and returns its name."""

    def module(text: str) -> str:
        name = f"a_users_module_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return module


def refusal(spec: str, search: Path, **arguments: Any) -> str:
    with pytest.raises(UsageError) as raised:
        load(spec, arguments, search)
    said = str(raised.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("spec", "lands_on", "streams", "needs_torch"),
    [("stats", "device", True, True), ("digest", "host", True, False), ("none", "device", False, False)],
)
def test_built_in_ones_say_what_a_lane_must_know(
    spec: str, lands_on: str, streams: bool, needs_torch: bool, tmp_path: Path
) -> None:
    loaded = load(spec, {}, tmp_path)
    assert (loaded.lands_on, loaded.streams, loaded.needs_torch) == (lands_on, streams, needs_torch)


def test_loading_built_in_ones_imports_no_torch() -> None:
    program = (
        "import sys; from pathlib import Path; from app.processors import BUILT_IN, load\n"
        "for spec in BUILT_IN: load(spec, {}, Path('.')).build()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def test_a_function_has_the_defaults_and_gets_blob_item_and_arguments(write: Write, tmp_path: Path) -> None:
    name = write("def process(blob, item, *, factor, plus=1):\n    return [blob, item.id, factor, plus]\n")
    loaded = load(f"{name}:process", {"factor": 3}, tmp_path)
    assert (loaded.lands_on, loaded.streams, loaded.needs_torch) == ("device", False, True)
    assert (loaded.spec, loaded.arguments) == (f"{name}:process", {"factor": 3})
    built = loaded.build()
    built.open(CPU)
    assert built.process(b"blob", ITEM) == [b"blob", "x", 3, 1]
    built.close()


def test_a_functions_attributes_say_where_it_lands(write: Write, tmp_path: Path) -> None:
    name = write("def go(blob, item): ...\ngo.lands_on = 'host'\ngo.needs_torch = False\n")
    loaded = load(f"{name}:go", {}, tmp_path)
    assert (loaded.lands_on, loaded.needs_torch) == ("host", False)


def test_a_class_is_made_anew_by_each_build_and_not_before(write: Write, tmp_path: Path) -> None:
    name = write(
        "made = []\n"
        "class Mine:\n"
        "    lands_on = 'host'\n"
        "    def __init__(self, model): made.append(model)\n"
        "    def open(self, device): self.name = device.name\n"
        "    def process(self, blob, item): return self.name\n"
    )
    loaded = load(f"{name}:Mine", {"model": "m"}, tmp_path)
    made = sys.modules[name].made
    assert (made, loaded.lands_on) == ([], "host")
    built = loaded.build()
    built.open(CPU)
    assert built.process(b"", ITEM) == "cpu"
    built.close()  # there is none, and it may be called all the same
    loaded.build()
    assert made == ["m", "m"]


def test_a_streaming_class_needs_begin_update_and_finish_alone(write: Write, tmp_path: Path) -> None:
    name = write(
        "class Length:\n"
        "    streams = True\n"
        "    def begin(self, item): self.bytes = 0\n"
        "    def update(self, window, offset): self.bytes += len(window)\n"
        "    def finish(self, item): return self.bytes\n"
    )
    loaded = load(f"{name}:Length", {}, tmp_path)
    assert loaded.streams
    built = loaded.build()
    built.open(CPU)
    built.begin(ITEM)
    built.update(b"abc", 0)
    assert built.finish(ITEM) == 3
    built.close()


def test_an_object_made_already_does_as_well_without_arguments(write: Write, tmp_path: Path) -> None:
    name = write("class Mine:\n    def process(self, blob, item): return 5\nmine = Mine()\n")
    assert load(f"{name}:mine", {}, tmp_path).build().process(b"", ITEM) == 5
    assert "takes no arguments: a, b" in refusal(f"{name}:mine", tmp_path, a=1, b=2)


def test_a_callable_that_is_no_function_does_as_well(write: Write, tmp_path: Path) -> None:
    name = write("from functools import partial\ndef f(x, blob, item): return x\nseven = partial(f, 7)\n")
    assert load(f"{name}:seven", {}, tmp_path).build().process(b"", ITEM) == 7


def test_dotted_names_reach_into_packages_and_classes(tmp_path: Path) -> None:
    folder = tmp_path / f"a_users_package_{next(_numbers)}"
    folder.mkdir()
    (folder / "inner.py").write_text("class Outer:\n    @staticmethod\n    def go(blob, item): return 1\n")
    assert load(f"{folder.name}.inner:Outer.go", {}, tmp_path).build().process(b"", ITEM) == 1


def test_modules_beside_the_users_module_can_be_imported_by_it_also_later(write: Write, tmp_path: Path) -> None:
    beside = write("answer = 42\n")
    name = write(f"def process(blob, item):\n    import {beside}\n    return {beside}.answer\n")
    assert load(f"{name}:process", {}, tmp_path).build().process(b"", ITEM) == 42
    assert sys.path[0] == str(tmp_path)
    load(f"{name}:process", {}, tmp_path)
    assert sys.path.count(str(tmp_path)) == 1


@pytest.mark.parametrize("spec", ["stat", "", ":", "mine:", ":process", "a b:c", "./mine:process", "mine:1"])
def test_what_is_no_processors_name_is_refused_with_the_form(spec: str, tmp_path: Path) -> None:
    said = refusal(spec, tmp_path)
    assert f"unknown processor {spec!r}" in said
    assert "stats, digest, none, or module:name" in said


def test_a_near_name_of_a_built_in_one_is_proposed(tmp_path: Path) -> None:
    assert "did you mean stats?" in refusal("stat", tmp_path)


def test_a_files_name_is_refused_with_the_modules(tmp_path: Path) -> None:
    assert "write mine:process" in refusal("mine.py:process", tmp_path)


def test_a_missing_module_is_refused_with_the_import_error(tmp_path: Path) -> None:
    said = refusal("no_such_module_here:process", tmp_path)
    assert said.endswith("cannot be imported: ModuleNotFoundError: No module named 'no_such_module_here'")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_dependency\n", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("def process(:\n", "SyntaxError: "),
        ("raise ValueError('two\\nlines')\n", "ValueError: two lines"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
    ],
)
def test_a_module_that_fails_is_refused_with_its_error(write: Write, tmp_path: Path, text: str, said: str) -> None:
    assert f"cannot be imported: {said}" in refusal(f"{write(text)}:process", tmp_path)


def test_a_name_that_is_not_there_is_refused_with_near_ones(write: Write, tmp_path: Path) -> None:
    name = write("def process(blob, item): ...\n")
    said = refusal(f"{name}:proces", tmp_path)
    assert f"{name} has no 'proces'; did you mean process?" in said
    assert refusal(f"{name}:xyz", tmp_path).endswith(f"{name} has no 'xyz'")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mine = 5\n", "it is of type int"),
        ("class mine:\n    def run(self): ...\n", "has no process;"),
        ("class mine:\n    streams = True\n    def update(self, w, o): ...\n", "has no begin and no finish;"),
        (
            "class mine:\n    lands_on = 'gpu'\n    def process(self, b, i): ...\n",
            "lands_on is 'gpu'; it is 'device' or",
        ),
        (
            "class mine:\n    needs_torch = 0\n    def process(self, b, i): ...\n",
            "needs_torch is 0; it is True or False",
        ),
        ("class mine:\n    async def process(self, b, i): ...\n", "process is a coroutine function; write def"),
        ("async def mine(b, i): ...\n", "is a coroutine function; write def"),
        ("def mine(b, i): ...\nmine.streams = True\n", "what streams is a class with begin, update, finish"),
        ("def mine(b): ...\n", "mine(b) does not fit its arguments: too many positional arguments"),
        ("def mine(b, i, k): ...\n", "mine(b, i, k) does not fit its arguments: missing a required argument: 'k'"),
    ],
)
def test_what_is_no_processor_is_refused_with_the_reason(write: Write, tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(f"{write(text)}:mine", tmp_path)


def test_arguments_that_a_class_does_not_take_are_refused(write: Write, tmp_path: Path) -> None:
    name = write("class Mine:\n    def __init__(self, model): ...\n    def process(self, blob, item): ...\n")
    assert "(model) does not fit its arguments: missing a required argument: 'model'" in refusal(
        f"{name}:Mine", tmp_path
    )
    said = refusal(f"{name}:Mine", tmp_path, model=1, size=2)
    assert "got an unexpected keyword argument 'size'" in said


@pytest.mark.parametrize("spec", BUILT_IN)
def test_arguments_that_a_built_in_one_does_not_take_are_refused(spec: str, tmp_path: Path) -> None:
    assert "unexpected keyword argument 'colour'" in refusal(spec, tmp_path, colour="red")


def test_values_that_a_built_in_one_does_not_take_are_refused(tmp_path: Path) -> None:
    assert "stats knows no dtype 'uint9'" in refusal("stats", tmp_path, dtype="uint9")
    assert "digest knows no algorithm 'sha0'" in refusal("digest", tmp_path, algorithm="sha0")
