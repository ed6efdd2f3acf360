import enum
import errno
import json
import math
import resource
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from app.errors import ItemError, Kind, RunError
from app.results import Array, Stored, file_name, replacing, store, sweep

FLOATS = Array("F32", (2,), struct.pack("<2f", 1.5, -2))
SCALAR = Array("I64", (), bytearray(struct.pack("<q", 7)))


class Color(enum.Enum):
    RED = 1


def stem(item_id: str) -> str:
    return f"artifacts/{file_name(item_id)}"


def test_a_plain_result_stays_as_it_is_and_makes_no_file(tmp_path):
    result = {"a": [1, 2.5, True, None, "ü\ud800"], "b": {"c": []}}
    assert store(tmp_path, "x", result) == Stored(result, ())
    assert list(tmp_path.iterdir()) == []


def test_all_arrays_of_a_result_go_into_one_file(tmp_path):
    stored = store(tmp_path, "x", {"mean": {"x": FLOATS}, "list": [0, SCALAR]})
    (path,) = stored.artifacts
    assert path == f"{stem('x')}.safetensors"
    assert stored.result == {
        "mean": {"x": {"artifact": path, "key": "mean.x"}},
        "list": [0, {"artifact": path, "key": "list.1"}],
    }
    arrays = load_file(tmp_path / path)
    assert arrays["mean.x"].tolist() == [1.5, -2]
    assert arrays["list.1"].shape == ()
    assert arrays["list.1"] == 7


def test_an_array_alone_is_saved_as_tensor(tmp_path):
    stored = store(tmp_path, "x", FLOATS)
    assert stored.result == {"artifact": stored.artifacts[0], "key": "tensor"}
    assert load_file(tmp_path / stored.artifacts[0])["tensor"].tolist() == [1.5, -2]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("BOOL", 1),
        ("U8", 1),
        ("I16", 2),
        ("U64", 8),
        ("BF16", 2),
        ("F64", 8),
        ("F8_E4M3", 1),
        ("F8_E8M0", 1),
        ("C64", 8),
    ],
)
def test_a_dtype_is_named_in_the_file_as_in_the_array(tmp_path, dtype, size):
    stored = store(tmp_path, "x", [Array(dtype, (2, 0), b""), Array(dtype, (3, 1), memoryview(bytes(3 * size)))])
    with safe_open(tmp_path / stored.artifacts[0], "numpy") as file:
        assert [file.get_slice(key).get_dtype() for key in ("0", "1")] == [dtype, dtype]
        assert [file.get_slice(key).get_shape() for key in ("0", "1")] == [[2, 0], [3, 1]]


@pytest.mark.parametrize(("dtype", "shape", "size"), [("F32", (2,), 4), ("F32", (), 0), ("F33", (1,), 4)])
def test_an_array_that_cannot_be_is_not_built(dtype, shape, size):
    with pytest.raises(ValueError, match=r"dtype|bytes are no"):
        Array(dtype, shape, bytes(size))


def test_bytes_become_files_of_their_own(tmp_path):
    stored = store(tmp_path, "x", {"png": b"\x89PNG", "a/b": [bytearray(b"1"), memoryview(b"2--3")[::3]]})
    assert stored.result["png"] == {"artifact": f"{stem('x')}.png.bin"}
    paths = [stored.result["png"], *stored.result["a/b"]]
    assert [(tmp_path / path["artifact"]).read_bytes() for path in paths] == [b"\x89PNG", b"1", b"23"]
    assert sorted(stored.artifacts) == sorted(path["artifact"] for path in paths)
    assert store(tmp_path, "y", b"alone").artifacts == (f"{stem('y')}.bin",)


def test_paths_that_look_alike_are_kept_apart(tmp_path):
    stored = store(tmp_path, "x", {"a.b": FLOATS, "a": {"b": SCALAR}, "__metadata__": SCALAR, "\ud800": SCALAR})
    arrays = load_file(tmp_path / stored.artifacts[0])
    assert set(arrays) == {"a.b", "a.b.2", "__metadata__.2", "\\ud800"}
    assert arrays[stored.result["a"]["b"]["key"]] == 7
    files = store(tmp_path, "y", {"a.b": b"1", "a": {"b": b"2"}, "a/b": b"3", "a_b": b"4", "": b"5", ".": b"6"})
    assert [(tmp_path / path).read_bytes() for path in files.artifacts] == [b"%d" % n for n in range(1, 7)]


def test_what_json_has_no_numbers_for_is_written_as_strings(tmp_path):
    stored = store(tmp_path, "x", {"a": [math.nan, math.inf, -math.inf], "b": (1, 2)})
    assert stored.result == {"a": ["NaN", "Infinity", "-Infinity"], "b": [1, 2]}
    json.dumps(stored.result, allow_nan=False)


def test_keys_become_strings_as_json_makes_them(tmp_path):
    for keys in ({1: 0, 2.5: 0, None: 0, "s": 0}, {True: 0, False: 0}):
        assert store(tmp_path, "x", keys).result == json.loads(json.dumps(keys))
    assert store(tmp_path, "x", {math.inf: 0, 1e22: 1}).result == {"Infinity": 0, "1e+22": 1}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"x": {"y": Color.RED}}, r"at result\.x\.y, is a Color, which results cannot hold"),
        ({1, 2}, "at result, is a set"),
        ({(1, 2): 3}, "has a key that is a tuple"),
        ({"x": {1: 2, "1": 3}}, r"at result\.x, has two keys that are '1' in JSON"),
        ([10**4300], "at result.0, is an integer of more than 4000 digits"),
        ("x" * (65 << 20), "longer than 64 MiB"),
    ],
)
def test_what_results_cannot_hold_fails_the_item_and_says_where(tmp_path, result, said):
    with pytest.raises(ItemError, match=said) as failed:
        store(tmp_path, "x", result)
    assert failed.value.kind is Kind.PROCESSOR


def test_a_result_that_contains_itself_fails_the_item(tmp_path):
    loop: list[object] = []
    loop += [loop, loop]
    with pytest.raises(ItemError, match="deeper than 100 levels, or contains itself"):
        store(tmp_path, "x", {"a": loop})


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_like)
def test_for_any_result_of_json_values_the_stored_one_is_equal(tmp_path_factory, result):
    assert store(tmp_path_factory.getbasetemp(), "x", result) == Stored(result, ())


texts = st.text(st.characters(), min_size=1) | st.text("ab/._\\ ä\ud800", min_size=1, max_size=4)


@given(texts, texts)
def test_for_any_two_ids_the_names_are_safe_and_differ(one, other):
    assert (file_name(one) == file_name(other)) == (one == other)
    name = file_name(one)
    assert len(name) <= 93
    assert name[0] != "."
    assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


@pytest.mark.parametrize(
    "hostile", ["../../etc/passwd", "/etc/passwd", "..", ".", "a\x00b", "x" * 5000, "https://h/a?b=../c"]
)
def test_no_id_leaves_the_folder(tmp_path, hostile):
    stored = store(tmp_path / "", hostile, {hostile: b"1", "t": FLOATS})
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {tmp_path / path for path in stored.artifacts}
    assert {path.parent for path in written} == {tmp_path / "artifacts"}


def test_artifacts_may_be_read_by_whom_the_umask_lets(tmp_path):
    (tmp_path / "reference").touch()
    for path in store(tmp_path, "x", [b"1", FLOATS]).artifacts:
        assert (tmp_path / path).stat().st_mode == (tmp_path / "reference").stat().st_mode


def test_an_artifact_made_again_replaces_the_old_one(tmp_path):
    for content in (b"old", b"new"):
        (path,) = store(tmp_path, "x", content).artifacts
    assert [file.read_bytes() for file in (tmp_path / "artifacts").iterdir()] == [b"new"]
    assert (tmp_path / path).read_bytes() == b"new"


def test_a_file_is_there_only_when_it_is_whole(tmp_path):
    path = tmp_path / "file"
    with replacing(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    with pytest.raises(LookupError), replacing(path) as temporary:
        temporary.write_text("half", encoding="no such encoding")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["whole"]


@pytest.mark.parametrize("result", [bytes(2 << 20), Array("U8", (2 << 20,), bytes(2 << 20))])
def test_a_full_disk_stops_the_run_and_leaves_nothing_half_written(tmp_path, result):
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, old[1]))
    try:
        with pytest.raises(RunError, match=rf"cannot be written.*({errno.EFBIG})"):
            store(tmp_path, "x", result)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert list((tmp_path / "artifacts").iterdir()) == []


def test_a_sweep_removes_what_was_half_written_and_nothing_else(tmp_path):
    (kept,) = store(tmp_path, "x", b"1").artifacts
    for name in ("artifacts/.x.bin.7.tmp", "artifacts/.tmpAb12", ".results.jsonl.7.tmp"):
        (tmp_path / name).touch()
    (tmp_path / "results.jsonl").touch()
    sweep(tmp_path)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {tmp_path / kept, tmp_path / "results.jsonl"}
    sweep(tmp_path / "nowhere")
