"""``kopt estimate`` on the frozen suite, as a user runs it: which programs run abstractly, and how long it takes.

    python -m benchmarks.suite_estimates [--all] [--only TEXT] [--python PATH]

One configuration of each program, or all. Each is a process of its own with nothing kept from before but the compiled
fake device; times are from its start to its answer: by the clock, and CPU seconds of it and all that it started.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import in_turns
from benchmarks.sizing_suite import SuiteEntry, read_suite
from benchmarks.tables import markdown

_KOPT = [str(Path(sys.executable).with_name("kopt"))]
# One of each class that computes in bfloat16, which those of 16 GiB do not.
_GPU = {16: "a10", 24: "a10", 40: "a100-40gb", 80: "a100-80gb", 141: "h200"}


@dataclass(frozen=True)
class Estimated:
    """What came of one program; ``peak_gib`` is None where nothing was told."""

    name: str
    method: str
    trace: str
    peak_gib: float | None
    seconds: float
    cpu_s: float
    error: str = ""

    @property
    def ran(self) -> bool:
        return self.method == "abstract" and self.trace in ("full", "partial")


def command_of(entry: SuiteEntry) -> str:
    """Its command line, to be typed in the folder of its program."""
    tail = entry.arguments.replace("{steps}", str(entry.steps))
    if entry.launcher == "module":
        return f"python -m {entry.module} {tail}"
    launcher = "torchrun --standalone --nproc-per-node=1" if entry.launcher == "torchrun" else "python"
    return f"{launcher} {entry.script} {tail}"


def estimate(entry: SuiteEntry, python: str, home: Path) -> Estimated:
    """Runs ``kopt estimate`` for one entry."""
    command = [
        *_KOPT,
        "estimate",
        command_of(entry),
        "--gpu",
        _GPU[entry.memory_gib],
        "--python",
        python,
        "--rerun",
        "--timeout",
        "180",
        "-o",
        "json",
    ]
    environment = {**os.environ, **entry.environment_for(entry.steps), "KOPT_HOME": str(home)}
    before, began = _children_cpu_s(), time.monotonic()
    done = subprocess.run(command, cwd=entry.folder, env=environment, capture_output=True, text=True, check=False)
    seconds, cpu_s = time.monotonic() - began, _children_cpu_s() - before
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        return Estimated(entry.name, "-", "-", None, seconds, cpu_s, last[:160])
    error = "; ".join(found.get("warnings", []))[:160]
    memory = found.get("memory") or {}
    peak = memory.get("peak_bytes")
    return Estimated(
        entry.name, str(found.get("method")), str(found.get("trace")), peak and peak / 2**30, seconds, cpu_s, error
    )


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(found: Sequence[Estimated]) -> str:
    rows = [
        (
            one.name,
            one.method,
            one.trace,
            "-" if one.peak_gib is None else f"{one.peak_gib:.1f}",
            f"{one.seconds:.1f}",
            f"{one.cpu_s:.1f}",
            "" if one.ran else one.error,
        )
        for one in found
    ]
    table = markdown(("program", "method", "trace", "peak, GiB", "seconds", "CPU s", "why not"), rows)
    ran = [one for one in found if one.ran]
    share = f"{len(ran)} of {len(found)} ran abstractly"
    if ran:
        clock, cpu = (statistics.median(each) for each in zip(*((one.seconds, one.cpu_s) for one in ran), strict=True))
        share += f" ({len(ran) / len(found):.0%}); medians of these: {clock:.1f} s, {cpu:.1f} CPU s"
    return f"{table}\n\n{share}"


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every configuration, not one of each program")
    parser.add_argument("--only", default="", metavar="TEXT", help="entries whose name contains it")
    parser.add_argument(
        "--python",
        default=os.environ.get("KOPT_TRAINER_PYTHON", sys.executable),
        help="an interpreter with torch and the trainers (KOPT_TRAINER_PYTHON)",
    )
    options = parser.parse_args(arguments)
    entries = list(in_turns([one for one in read_suite() if options.only in one.name]))
    if not entries:
        parser.error(f"no entry's name contains {options.only!r}")
    if not options.all:
        entries = entries[: len({one.file for one in entries})]
    found: list[Estimated] = []
    with tempfile.TemporaryDirectory(prefix="kopt-suite-") as home:
        # The first one compiles the fake device, which is kept.
        estimate(entries[0], options.python, Path(home))
        for number, entry in enumerate(entries, 1):
            found.append(estimate(entry, options.python, Path(home)))
            print(
                f"[{number}/{len(entries)}] {entry.name}: {found[-1].seconds:.1f} s {found[-1].error}", file=sys.stderr
            )
    print(report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
