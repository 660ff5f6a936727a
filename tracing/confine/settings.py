"""The supervisor's settings, as JSON on its standard input, and its report."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Limits:
    """How much a confined command may use.

    ``memory_bytes`` is the resident memory of all its processes together, with what they write into private memory,
    ``scratch_bytes`` what all files it writes may hold together, ``file_bytes`` what one file may hold, ``event_bytes``
    what is taken from the event pipe, ``tail_bytes`` how much of the end of its output is kept. ``cpu_s`` is per
    process, ``wall_s`` for all.
    """

    wall_s: float = 60.0
    cpu_s: int = 120
    memory_bytes: int = 8 << 30
    processes: int = 512
    open_files: int = 1024
    file_bytes: int = 1 << 30
    scratch_bytes: int = 2 << 30
    event_bytes: int = 1 << 30
    tail_bytes: int = 64 << 10

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 < getattr(self, field.name) < 1 << 50:
                raise ValueError(f"limit {field.name} must be above zero, not {getattr(self, field.name)}")

    @property
    def written_bytes(self) -> int:
        """What all files may hold together: they lie in memory where a private file system can be had."""
        return min(self.scratch_bytes, self.memory_bytes)


PROTECTIONS = ("user", "net", "mount", "ipc", "host name", "pid", "landlock", "landlock 6", "seccomp", "other user")
"""What a machine may offer: namespaces by kind, the two filters (Landlock's sixth version keeps signals inside), and
another user in root's place."""


@dataclass(frozen=True)
class Confinement:
    """One command to confine. Paths are absolute; descriptors are those the supervisor inherits.

    ``base`` is an empty folder of the caller's, over which a private file system is mounted where that is possible;
    ``base``/home is the command's HOME and temporary folder.
    """

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    limits: Limits
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    base: str
    copy_on_write: bool
    status_fd: int
    output_fd: int
    events_fd: int | None
    allow_unconfined: bool
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := set(self.without) - set(PROTECTIONS):
            raise ValueError(f"no protections are called {', '.join(sorted(unknown))}")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Confinement":
        values: dict[str, Any] = json.loads(text)
        values["limits"] = Limits(**values["limits"])
        for name in ("argv", "readable", "writable", "without"):
            values[name] = tuple(values[name])
        return cls(**values)
