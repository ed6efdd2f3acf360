from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.errors import UsageError
from app.settings import PREFIX, Settings

EXAMPLE = Path(__file__).parents[1] / ".env.example"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no setting in the environment."""
    for name in os.environ:
        if name.upper().startswith(PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaint(**flags: object) -> str:
    with pytest.raises(UsageError) as caught:
        Settings.read(**flags)
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_flags_win_over_the_environment_and_the_environment_over_the_env_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".env").write_text("APP_MANIFEST=file.txt\nAPP_CONNECTIONS=2\nAPP_ATTEMPTS=2\n")
    monkeypatch.setenv("APP_CONNECTIONS", "3")
    monkeypatch.setenv("APP_ATTEMPTS", "3")
    settings = Settings.read(attempts="4")
    assert (settings.manifest, settings.connections, settings.attempts) == ("file.txt", 3, 4)


def test_an_empty_variable_says_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".env").write_text("APP_HOST_BUFFER=\n")
    monkeypatch.setenv("APP_CONNECTIONS", "")
    assert Settings.read() == Settings()


def test_what_is_in_the_env_file_for_others_is_let_be(folder: Path) -> None:
    (folder / ".env").write_text("AWS_REGION=eu\nAPP_OF_ANOTHER=1\n")
    assert Settings.read() == Settings()


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("1073741824", 1 << 30), ("256MiB", 256 << 20), ("2 GB", 2_000_000_000), ("1.5gib", 3 << 29), ("64KiB", 1 << 16)],
)
def test_sizes_take_units_from_flags_and_from_the_environment(
    text: str, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_DEVICE_BUFFER", text)
    settings = Settings.read(host_buffer=text)
    assert settings.host_buffer == settings.device_buffer == size_bytes


def test_processor_arguments_are_a_json_object_from_flags_and_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Settings.read(processor_args='{"dtype": "float32"}').processor_args == {"dtype": "float32"}
    monkeypatch.setenv("APP_PROCESSOR_ARGS", '{"dtype": "int8"}')
    assert Settings.read().processor_args == {"dtype": "int8"}


MISTAKES = [
    ("host_buffer", "lots", "is not a size; write it like 512MiB or 2GB"),
    ("host_buffer", "9" * 400, "is not a size"),
    ("host_buffer", "0", "greater than or equal to 1"),
    ("read_ahead", "-1", "is not a size"),
    ("connections", "many", "valid integer"),
    ("connections", "257", "less than or equal to 256"),
    ("limit", "0", "greater than or equal to 1"),
    ("grace", "-1", "greater than or equal to 0"),
    ("stall_timeout", "0", "greater than 0"),
    ("dry_run", "maybe", "valid boolean"),
    ("manifest_format", "xml", "'auto', 'text', 'jsonl' or 'csv'"),
    ("loop", "trio", "'auto', 'uvloop' or 'asyncio'"),
    ("processor_args", "{dtype", "not JSON"),
    ("processor_args", "[1]", "not a JSON object"),
]


@pytest.mark.parametrize(("name", "text", "reason"), MISTAKES)
def test_a_mistake_in_a_flag_is_one_line_that_names_the_flag(name: str, text: str, reason: str) -> None:
    said = complaint(**{name: text})
    assert said.startswith(f"--{name.replace('_', '-')} {text!r}: ")
    assert reason in said


@pytest.mark.parametrize(("name", "text", "reason"), MISTAKES)
def test_a_mistake_in_the_environment_is_one_line_that_names_the_variable(
    name: str, text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"APP_{name.upper()}", text)
    said = complaint()
    assert said.startswith(f"APP_{name.upper()} {text!r}: ")
    assert reason in said


def test_a_mistake_in_the_env_file_is_one_line_that_names_the_variable(folder: Path) -> None:
    (folder / ".env").write_text("APP_SLAB_SIZE=big\n")
    assert complaint().startswith("APP_SLAB_SIZE 'big': ")
    (folder / ".env").write_bytes(b"APP_OUTPUT=\xff\n")
    assert complaint() == ".env is not UTF-8 at byte 12"


def test_a_slab_size_is_a_power_of_two_and_a_part_no_shorter() -> None:
    assert complaint(slab_size="3MiB").startswith("--slab-size 3145728 is not a power of two")
    assert complaint(part_size="1MiB").startswith("--part-size 1048576 is less than --slab-size")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings.read().connections = 3


def test_the_example_names_exactly_the_fields_with_their_descriptions() -> None:
    pairs = re.findall(r"^# (.+)\n# APP_(\w+)=", EXAMPLE.read_text(), re.MULTILINE)
    assert [(name.lower(), said) for said, name in pairs] == [
        (name, str(field.description).replace("%%", "%")) for name, field in Settings.model_fields.items()
    ]
    assert pairs[0][1] == "MANIFEST"


def test_the_example_says_the_defaults(folder: Path) -> None:
    text = EXAMPLE.read_text()
    settings = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert settings == ["COMPOSE_FILE=docker/compose.yaml"]
    default = Settings.read()
    (folder / ".env").write_text(re.sub(r"^# (?=APP_)", "", text, flags=re.MULTILINE))
    assert Settings.read() == default
