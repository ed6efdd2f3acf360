"""The command line: commands, and for `run` a flag for every field of Settings."""

from __future__ import annotations

import argparse
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo

from app import __version__
from app.errors import UsageError
from app.items import format_binary
from app.settings import PREFIX, Settings

GROUPS = {
    "manifest": ("manifest_format", "limit", "dry_run"),
    "processor": ("processor", "processor_args"),
    "output": ("output", "fresh", "retry_failed"),
    "devices and memory": (
        *("devices", "host_buffer", "device_buffer", "read_ahead", "slab_size", "part_size", "connections"),
    ),
    "patience": ("attempts", "connect_timeout", "stall_timeout", "ca_file", "grace"),
    "looks": ("loop", "progress", "log_format"),
}
_OF_DEMO = ("devices", "host_buffer", "loop", "progress", "log_format")
_METAVARS = {
    "processor": "NAME",
    "processor_args": "JSON",
    "output": "FOLDER",
    "devices": "LIST",
    "ca_file": "FILE",
    "limit": "N",
    "connections": "N",
    "attempts": "N",
}
_SIZES = ("host_buffer", "device_buffer", "read_ahead", "slab_size", "part_size")
_SECONDS = ("connect_timeout", "stall_timeout", "grace")

COMMANDS = ("run", "results", "demo", "doctor")
DESCRIPTION = "Streams big blobs from URLs and files through one exclusive lane per device, and keeps one outcome each."
_SETTINGS_NOTE = (
    f"Each of these is an environment variable too ({PREFIX}HOST_BUFFER), and a line of .env. Flags win over the"
    " environment, the environment over .env. Sizes take KiB MiB GiB TiB KB MB GB TB."
)
_EXIT_NOTE = (
    "Exit codes: 0 all done; 1 some items failed; 2 the command must be mended; 3 the run could not go on;"
    " 130 or 143 interrupted, and the same command continues it."
)


class Parser(argparse.ArgumentParser):
    """Says what is wrong by a UsageError."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def build_parser(program: str) -> Parser:
    """The parser of all commands; flags that are not given are not in its namespace, but for `command`."""
    parser = Parser(prog=program, description=DESCRIPTION, epilog=_EXIT_NOTE)
    parser.add_argument("--version", action="version", version=f"gpufeed {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    run = commands.add_parser(
        "run", help="do the items of a manifest, or what is left of them", description=DESCRIPTION, epilog=_EXIT_NOTE
    )
    _add_run(run)
    results = commands.add_parser(
        "results",
        help="write the outcomes of a run, also while it is alive",
        description="Writes the outcomes of a run to standard output, also while it is alive.",
    )
    _add_results(results)
    demo = commands.add_parser(
        "demo",
        help="show a run on six generated blobs",
        description="Shows a run on six generated blobs of 64 MiB from an origin of its own; one fails on purpose.",
    )
    demo.add_argument("--output", metavar="FOLDER", default="out-demo", help="output folder (default: %(default)s)")
    for name in _OF_DEMO:
        _add_field(demo, name)
    commands.add_parser(
        "doctor",
        help="say what is wrong with this machine, and how to mend it",
        description="Looks at what a run needs of this machine; exit code 1 where something is wrong.",
    )
    return parser


def _add_run(run: argparse.ArgumentParser) -> None:
    described = Settings.model_fields["manifest"].description
    for number, (title, names) in enumerate(GROUPS.items()):
        group = run.add_argument_group(title, _SETTINGS_NOTE if not number else None)
        if title == "manifest":
            group.add_argument("manifest", metavar="MANIFEST", nargs="?", default=argparse.SUPPRESS, help=described)
            group.add_argument(
                "--manifest", dest="manifest", metavar="MANIFEST", default=argparse.SUPPRESS, help=argparse.SUPPRESS
            )
        for name in names:
            _add_field(group, name)


def _add_results(results: argparse.ArgumentParser) -> None:
    results.add_argument("output", metavar="OUT", nargs="?", default=argparse.SUPPRESS, help="output folder of the run")
    results.add_argument(
        "--format",
        choices=("jsonl", "csv", "parquet", "manifest"),
        default="jsonl",
        help="manifest: the items themselves, to be given to a run again (default: %(default)s)",
    )
    results.add_argument(
        "--status", choices=("done", "failed"), help="only these (default: all; of a manifest the failed ones)"
    )
    results.add_argument("--to", metavar="FILE", default="-", help="a file instead of standard output")


# `add_argument_group` returns a private class; both have add_argument.
def _add_field(to: Any, name: str) -> None:
    field = Settings.model_fields[name]
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _described(name, field)}
    if field.annotation is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif get_origin(field.annotation) is Literal:
        options["metavar"] = "|".join(get_args(field.annotation))
    elif name in _SIZES:
        options["metavar"] = "SIZE"
    elif name in _SECONDS:
        options["metavar"] = "SECONDS"
    else:
        options["metavar"] = _METAVARS[name]
    to.add_argument(f"--{name.replace('_', '-')}", **options)


def _described(name: str, field: FieldInfo) -> str:
    """The field's help, with its default where it has one worth saying."""
    said = str(field.description)
    value = field.get_default(call_default_factory=True)
    if value is not None and value is not False and value != {}:
        said += f" (default: {format_binary(value) if name in _SIZES else f'{value:g}' if name in _SECONDS else value})"
    return said.replace("%", "%%")
