#!/usr/bin/env python3
"""Every test that is not marked as long, in groups: each a pytest process of its own, three at a time, longest first.

    scripts/test_all.py                all groups (make test)
    scripts/test_all.py deploy         the groups with a word in their name
    scripts/test_all.py --attacks      tests/attacks without a control plane (make attack)
    scripts/test_all.py --long         what is marked as long, and nothing else (make test-long)
    scripts/test_all.py -- -x -v       options for pytest

Tests on a control plane or with Ray mostly wait and the others mostly compute, so two cores carry three groups; with
more, answers are late. At most two with a control plane run at a time, as the idle servers of one take a fifth of a
core, and one with Ray. What a group printed is shown when it ends, and a table of durations at the end.
"""

import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AT_ONCE = 3
LIMITS = {"cluster": 2, "ray": 1}
MARKERS = {"cluster": "cluster", "ray": "ray and not cluster", "": "not cluster and not ray"}
PROGRESS_S = 60.0
NO_TESTS = 5
"""The exit status of pytest when it collected no test."""


@dataclass
class Group:
    """Tests of a kind, in files or folders below ``tests``. Without paths: all that no other of its kind names."""

    kind: str
    """What they start: a control plane (``cluster``), ``ray``, or neither."""
    paths: tuple[str, ...] = ()
    began_s: float = 0.0
    seconds: float = 0.0
    status: int | None = None
    output: Path = field(default_factory=Path)

    @property
    def name(self) -> str:
        return f"{self.kind or 'neither'}: {' '.join(self.paths) or 'all others'}"

    def command(self, options: list[str], *, long: bool) -> list[str]:
        own = self.paths or ("",)
        others = (path for group in GROUPS if group.kind == self.kind and group is not self for path in group.paths)
        ignored = [path for path in others if any(path.startswith(f"{folder}/" if folder else "") for folder in own)]
        chosen = [f"tests/{path}" for path in own] + [f"--ignore=tests/{path}" for path in ignored]
        marked = f"({MARKERS[self.kind]}) and {'long' if long else 'not long'}"
        return [".venv/bin/python", "-P", "-m", "pytest", "-m", marked, "--durations=30", *chosen, *options]


# In the order of their durations, which the table at the end shows.
GROUPS = [
    Group(
        "cluster",
        (
            "lending",
            "admission",
            "staging_controller",
            "preemption_controller",
            "sizing_controller",
            "pairwise",
            "evictions",
        ),
    ),
    Group(""),
    Group("cluster"),
    Group("", ("serving", "training", "dashboard")),
    Group("", ("cli", "agents", "attacks")),
    Group("cluster", ("deploy",)),
    Group("cluster", ("attacks", "extender")),
    Group("ray"),
    Group("", ("sizing", "checkpoint")),
]

ATTACKS = [Group("ray", ("attacks",)), Group("", ("attacks",))]


def startable(waiting: list[Group], running: list[Group]) -> Group | None:
    """The next group that may run beside those that do."""
    if len(running) >= AT_ONCE:
        return None
    full = {kind for kind, limit in LIMITS.items() if sum(group.kind == kind for group in running) >= limit}
    return next((group for group in waiting if group.kind not in full), None)


def run(groups: list[Group], options: list[str], folder: Path, *, long: bool) -> None:
    waiting, running = list(groups), dict[int, tuple[Group, "subprocess.Popen[bytes]"]]()
    told_s = time.monotonic()
    try:
        while waiting or running:
            while group := startable(waiting, [group for group, _ in running.values()]):
                waiting.remove(group)
                group.output, group.began_s = folder / f"{len(waiting)}.log", time.monotonic()
                print(f"started: {group.name}", flush=True)
                with group.output.open("wb") as output:
                    process = subprocess.Popen(
                        group.command(options, long=long), cwd=ROOT, stdout=output, stderr=output
                    )
                running[process.pid] = group, process
            time.sleep(0.5)
            for pid, (group, process) in list(running.items()):
                if process.poll() is not None:
                    del running[pid]
                    finish(group, process.returncode)
            if time.monotonic() - told_s > PROGRESS_S:
                told_s = time.monotonic()
                for group, _ in running.values():
                    last = group.output.read_bytes()[-500:].decode(errors="replace").rpartition("\n")[2]
                    print(f"{told_s - group.began_s:6.0f} s  {group.name}: {last[-100:]}", flush=True)
    finally:
        for _, process in running.values():
            process.send_signal(signal.SIGINT)
            process.wait()


def finish(group: Group, status: int) -> None:
    group.seconds, group.status = time.monotonic() - group.began_s, 0 if status == NO_TESTS else status
    sys.stdout.write(f"\n===== {group.name}\n")
    sys.stdout.flush()
    sys.stdout.buffer.write(group.output.read_bytes())
    sys.stdout.write(f"===== {group.name}: {outcome(group)} in {group.seconds:.0f} s\n\n")
    sys.stdout.flush()


def outcome(group: Group) -> str:
    return "passed" if group.status == 0 else "FAILED"


def main(arguments: list[str]) -> int:
    words, _, options = " ".join(arguments).partition("-- ")
    groups = [group for group in GROUPS if not words.strip() or any(word in group.name for word in words.split())]
    if words.split() == ["--attacks"]:
        groups = ATTACKS
    long = words.split() == ["--long"]
    if long:
        groups = GROUPS
    if not groups:
        print("no group has one of these words in its name; there are: " + "; ".join(group.name for group in GROUPS))
        return 2
    # A shell lets what it runs in the background ignore it, and what the tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        run(groups, options.split(), Path(folder), long=long)
    for group in sorted(groups, key=lambda group: -group.seconds):
        print(f"{group.seconds:6.0f} s  {outcome(group)}  {group.name}")
    return int(any(group.status for group in groups))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
