"""The README is always true where a test can see it."""

from __future__ import annotations

import re
from pathlib import Path

from app.errors import Kind
from app.settings import Settings

README = (Path(__file__).parents[1] / "README.md").read_text()
COMPOSE = (Path(__file__).parents[1] / "docker" / "compose.yaml").read_text()
NOT_YET = {Kind.CRASHED, Kind.ITEM_TIMEOUT, Kind.CANCELLED}  # nothing fails so in this version


def test_the_settings_table_has_every_setting_with_its_meaning() -> None:
    rows = re.findall(r"^\| `--([a-z-]+)` \|[^|]*\| (.*) \|$", README, re.MULTILINE)
    fields = {name.replace("_", "-"): str(field.description) for name, field in Settings.model_fields.items()}
    del fields["manifest"]  # the positional argument
    assert dict(rows) == fields


def test_the_kinds_table_has_every_kind_there_can_be() -> None:
    table = README.partition("| kind | what happened")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z_]+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[1:] if line)))
    assert named == {str(kind) for kind in Kind} - NOT_YET


def test_compose_passes_every_setting_on() -> None:
    passed = set(re.findall(r"^ +- APP_([A-Z_]+)", COMPOSE, re.MULTILINE))
    fields = {name.upper() for name in Settings.model_fields}
    # The output is a volume, and a container's log is no terminal.
    assert passed == fields - {"OUTPUT", "PROGRESS"}
