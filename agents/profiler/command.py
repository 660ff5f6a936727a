"""The profiler as a program of its own, for users' containers: ``profile [OPTIONS] -- COMMAND``.

It writes the profile's document where ``--result`` says (in a pod the termination message, which the kubelet puts into
the pod's status: so the pod needs no rights at the API server) and ends with 0 when there is one, whatever became of
the command. 64: wrong usage; 69: nothing can be observed here; 127: the command cannot be started.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from kopt.agents.profiler.readings import Exhausted, SourceError
from kopt.agents.profiler.run import RunSettings, profile_command
from kopt.agents.profiler.sources import SOURCE_VARIABLE, find_source
from kopt.core.workload.profile import DryRun

USAGE, UNAVAILABLE, NOT_STARTED = 64, 69, 127
LARGEST_MESSAGE = 4096
"""Bytes of a termination message that Kubernetes keeps."""
JOB_TYPE_VARIABLE, WORLD_SIZE_VARIABLE = "KOPT_JOB_TYPE", "KOPT_PROFILE_WORLD_SIZE"


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile the command; the exit status."""
    options = _options(sys.argv[1:] if arguments is None else arguments)
    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stop.append(received))
    own = {SOURCE_VARIABLE, JOB_TYPE_VARIABLE, WORLD_SIZE_VARIABLE}
    try:
        settings = RunSettings(options.duration, options.interval, options.grace)
        source = find_source(options.source)
        with contextlib.closing(source):
            dry_run = profile_command(
                options.command,
                source,
                settings,
                job_type=os.environ.get(JOB_TYPE_VARIABLE, ""),
                world_size=int(os.environ.get(WORLD_SIZE_VARIABLE) or 1),
                env={name: value for name, value in os.environ.items() if name not in own},
                stopped=lambda: bool(stop),
            )
    except ValueError as error:
        return _fail(str(error), USAGE)
    except (SourceError, Exhausted) as error:
        return _fail(f"{error}", UNAVAILABLE)
    except OSError as error:
        return _fail(f"{options.command[0]}: {error.strerror or error}", NOT_STARTED)
    _write(dry_run, options.result)
    return 0


def main_and_exit() -> None:
    """The archive's entry."""
    sys.exit(main())


def message_of(dry_run: DryRun) -> str:
    """The document in as few bytes as a termination message has."""
    text = json.dumps(dry_run.to_dict(), separators=(",", ":"))
    if len(text.encode()) > LARGEST_MESSAGE:
        text = json.dumps({**dry_run.to_dict(), "warnings": []}, separators=(",", ":"))
    return text


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("profile", description="Run a command and write down what GPU memory it needs.")
    parser.add_argument("--duration", type=float, default=300.0, help="seconds at most")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between readings, at most 1")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--source", default="", help="where readings come from; default: what the machine has")
    parser.add_argument("--result", type=Path, help="file for the document; default: standard output")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    result = parser.parse_args(list(arguments))
    result.command = result.command[1:] if result.command[:1] == ["--"] else result.command
    if not result.command:
        parser.exit(USAGE, "profile: a command is needed behind --\n")
    return result


def _write(dry_run: DryRun, path: Path | None) -> None:
    text = message_of(dry_run)
    if path is None:
        sys.stdout.write(text + "\n")
    else:
        path.write_text(text, encoding="utf-8")


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"profile: {message}\n")
    return status


if __name__ == "__main__":
    main_and_exit()
