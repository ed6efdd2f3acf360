"""Commands and exit codes; the only reader of argv and environment."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from app.errors import RunError, UsageError

if TYPE_CHECKING:
    import asyncio

    from app.run import Summary
    from app.settings import Settings

T = TypeVar("T")

OK, SOME_FAILED, USAGE, CANNOT_GO_ON = 0, 1, 2, 3
INTERRUPTED = 128  # and the signal's number
CONTINUES = "the same command continues the run"
SHORT_USAGE = """\
usage: {program} run MANIFEST [--processor module:name] [--output FOLDER] …

There is no manifest: give a file or URL with a URL or path a line, or set APP_MANIFEST.

  {program} demo          shows a run on generated blobs
  {program} run --help    explains every setting
  {program} --help        lists all commands
"""


def script() -> NoReturn:
    """Run the command that argv names, and leave."""
    signal.signal(signal.SIGTERM, lambda number, _: leave(INTERRUPTED + number))  # process 1 of a container has none
    # Kernels on CPU lanes share the cores with the readers: threads of OpenMP that wait by spinning cost them threefold
    # (2 cores, demo, 2026-12). It is read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    leave(main(sys.argv[1:]))


def leave(code: int) -> NoReturn:
    """End the process at once. Interpreter exit would join threads, and one may hang in user code or on a pipe."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # nobody reads it any more, or it was closed from the start
    os._exit(code)


def main(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; whatever goes wrong has been said on standard error."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # an odd file name is no reason to fail
    try:
        return _command(arguments)
    except UsageError as error:
        return _complain(str(error), USAGE)
    except RunError as error:
        return _complain(str(error), CANNOT_GO_ON)
    except KeyboardInterrupt:
        return _complain(f"interrupted; {CONTINUES}", INTERRUPTED + signal.SIGINT)
    except BrokenPipeError:
        return OK  # whoever read the output has had enough
    except OSError as error:
        return _complain(f"what is to be said cannot be written: {error.strerror or error}", CANNOT_GO_ON)
    except SystemExit as done:  # argparse, after --help or --version
        return done.code if isinstance(done.code, int) else OK
    except Exception:
        traceback.print_exc()
        return _complain(f"this is a mistake in gpufeed itself; {CONTINUES}", CANNOT_GO_ON)


def _complain(said: str, code: int) -> int:
    """Say it in one line, as an object where the log is made of them; returns the code."""
    import logging

    from app.views.words import printable

    said = printable(" ".join(said.split()))
    if any(getattr(out, "as_json", False) for out in logging.getLogger().handlers):
        level = logging.ERROR if code in (USAGE, CANNOT_GO_ON) else logging.WARNING
        logging.getLogger("gpufeed").log(level, "%s", said)
    else:
        print(f"gpufeed: {said}", file=sys.stderr)
    return code


def _command(arguments: Sequence[str]) -> int:
    from app.flags import COMMANDS, build_parser
    from app.settings import Settings

    program = "gpufeed" if Path(sys.argv[0]).name == "gpufeed" else "python -m app"
    first = arguments[0] if arguments else ""
    if not arguments and Settings.read().manifest is None:
        print(SHORT_USAGE.format(program=program), file=sys.stderr, end="")
        return USAGE
    if not first.startswith("-") and first and first not in COMMANDS:
        raise UsageError(f"unknown command {first!r}; there are {', '.join(COMMANDS)}; a manifest is given to run")
    if first not in (*COMMANDS, "-h", "--help", "--version"):
        arguments = ["run", *arguments]
    given = vars(build_parser(program).parse_args(arguments))
    commands: dict[str, Callable[[dict[str, Any]], int]] = {
        "run": _run,
        "results": _results,
        "demo": _demo,
        "doctor": _doctor,
    }
    return commands[given.pop("command")](given)


def _run(flags: dict[str, Any]) -> int:
    from app.settings import Settings

    settings = Settings.read(**flags)
    if settings.manifest is None:
        raise UsageError("there is no manifest: give one after run, or set APP_MANIFEST; demo shows a run without")
    if settings.dry_run:
        return _dry_run(settings)
    summary = _execute(settings)
    if summary.signalled is not None:
        return INTERRUPTED + summary.signalled
    return SOME_FAILED if summary.counts.failed else OK


def _dry_run(settings: Settings) -> int:
    import json
    from dataclasses import asdict

    from app.commands.dry_run import describe, read_manifest

    read = _await(read_manifest(settings), settings)
    print(json.dumps(asdict(read)) if settings.log_format == "json" else describe(read))
    return OK


def _results(given: dict[str, Any]) -> int:
    from app.commands.results import write
    from app.items import Status
    from app.settings import Settings

    folder = given["output"] if "output" in given else Settings.read().output
    status = Status(given["status"]) if given["status"] is not None else None
    write(Path(folder), given["format"], status, given["to"])
    return OK


def _demo(flags: dict[str, Any]) -> int:
    from app.commands.demo import demo

    return demo(flags, _execute, print)


def _doctor(_: dict[str, Any]) -> int:
    from app.commands.doctor import doctor
    from app.settings import Settings

    return doctor(Settings.read(), print)


def _execute(settings: Settings) -> Summary:
    """One run, shown while it lasts, and its summary."""
    import contextlib
    import json
    import resource

    from app.views.lines import start_logging
    from app.views.summary import summary_lines, summary_row

    as_json = settings.log_format == "json"
    if as_json and settings.progress == "on":
        raise UsageError("--progress on is for a terminal, and --log-format json for machines; leave one out")
    start_logging(settings.log_format, settings.output)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))  # connections, files and the ledger need some
    summary = _await(_watched(settings), settings)
    said = [json.dumps(summary_row(summary, settings.output))] if as_json else summary_lines(summary, settings.output)
    with contextlib.suppress(BrokenPipeError):  # nobody reads it, and the run is as done as it is
        print("\n".join(said), flush=True)
    if summary.signalled is not None:
        _complain(f"interrupted by {summary.signalled.name}; {CONTINUES}", 0)
    return summary


async def _watched(settings: Settings) -> Summary:
    import asyncio

    from app.run import Run
    from app.views.watch import Watch

    def leave_at_once(number: signal.Signals) -> None:
        watch.close()
        leave(_complain(f"left at once after {number.name}; {CONTINUES}", INTERRUPTED + number))

    live = settings.progress == "on" or (
        settings.progress == "auto"
        and settings.log_format == "text"
        and sys.stderr.isatty()
        and os.environ.get("TERM", "dumb") != "dumb"
    )
    run = Run(settings, leave_at_once)
    watch = Watch(run.snapshot, live=live)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(watch.follow())
        try:
            return await run.execute()
        except (UsageError, RunError) as caught:
            error = caught  # outside the group, which would wrap it
        finally:
            following.cancel()
            watch.close()
    raise error


def _await(coroutine: Coroutine[Any, Any, T], settings: Settings) -> T:
    import asyncio

    try:
        runner = asyncio.Runner(loop_factory=_loop_factory(settings.loop))
    except UsageError:
        coroutine.close()
        raise
    return runner.run(coroutine)  # never closed: that would wait for threads, some of which may hang


def _loop_factory(choice: str) -> Callable[[], asyncio.AbstractEventLoop]:
    import asyncio

    if choice != "asyncio":
        try:
            import uvloop
        except ImportError:
            if choice == "uvloop":
                raise UsageError("--loop uvloop: it is not installed; pip install uvloop, or --loop asyncio") from None
        else:
            factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
            return factory
    return asyncio.new_event_loop


if __name__ == "__main__":
    script()
