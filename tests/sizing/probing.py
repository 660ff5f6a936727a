"""A script under the probe, and what its events add up to."""

import io
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kopt.tracing.events import SUBJECT, A, Event, Role, Trace, read_events

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
PROBE = ROOT / "tracing" / "probe"
_RUN_SECONDS = 240


@dataclass(frozen=True)
class Run:
    """What came of a script: its events, its output, its exit status, the stream itself."""

    trace: Trace
    output: str
    status: int
    stream: bytes

    @property
    def ended(self) -> str:
        """Why it ended, with the error."""
        end = self.trace.end
        return "no end" if end is None else f"{end.reason} {end.error or ''}".strip()

    def alive(self) -> dict[Role, int]:
        """Bytes at the end by role."""
        sizes: dict[int, int] = {}
        roles: dict[int, int] = {}
        for event, subject, a in self.trace.rows[:, [0, SUBJECT, A]].tolist():
            if event == Event.ALLOC:
                assert subject not in sizes
                sizes[subject] = a
            elif event == Event.FREE:
                del sizes[subject]
            elif event == Event.ROLE:
                roles[subject] = a
        found = dict.fromkeys(Role, 0)
        for subject, size in sizes.items():
            found[Role(roles.get(subject, 0))] += size
        return found

    def ever(self, role: Role) -> int:
        """Bytes of all storages that were said to have this role."""
        rows = self.trace.rows
        said = rows[(rows[:, 0] == Event.ROLE) & (rows[:, A] == role), SUBJECT]
        made = rows[rows[:, 0] == Event.ALLOC]
        return int(made[np.isin(made[:, SUBJECT], said), A].sum())

    def peak(self) -> int:
        """The most bytes alive at once."""
        sizes: dict[int, int] = {}
        now = most = 0
        for event, subject, a in self.trace.rows[:, [0, SUBJECT, A]].tolist():
            if event == Event.ALLOC:
                sizes[subject] = a
                now += a
                most = max(most, now)
            elif event == Event.FREE:
                now -= sizes.pop(subject)
        return most

    def phases(self) -> set[str]:
        """The names of the phases that were met."""
        rows = self.trace.rows
        return {self.trace.names[number] for number in rows[rows[:, 0] == Event.PHASE, SUBJECT].tolist()}


def start(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Run:
    """Runs a command with the event pipe and reads it."""
    receive, send = os.pipe()
    parts: list[bytes] = []

    def drain() -> None:
        with os.fdopen(receive, "rb") as pipe:
            while part := pipe.read(1 << 16):
                parts.append(part)

    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment, "KOPT_EVENTS_FD": str(send)}
    with subprocess.Popen(
        command, cwd=folder, env=variables, pass_fds=[send], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        os.close(send)
        reader = threading.Thread(target=drain)
        reader.start()
        try:
            output, _ = process.communicate(timeout=_RUN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            output = f"{process.communicate()[0]}\n(did not end in {_RUN_SECONDS} s)"
        reader.join()
    stream = b"".join(parts)
    assert stream, f"no events were written:\n{output[-2000:]}"
    return Run(read_events(io.BytesIO(stream)), output, process.returncode, stream)
