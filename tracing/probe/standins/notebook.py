"""Notebooks exported to scripts: what they ask of IPython, where it is not the one that runs them."""

from __future__ import annotations

import builtins
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..session import Session

_USES_IPYTHON = b"get_ipython"
_MAX_BYTES = 16 << 20
# Magics around Python, which is run; what the others hold is left out.
_AROUND = ("time", "timeit", "capture", "prun", "memit", "mprun", "lprun")


def install(session: Session) -> None:
    """Gives ``get_ipython`` and ``display`` to a script whose text asks for them; libraries ask in vain as before."""
    if not _imports_ipython(sys.argv[1] if len(sys.argv) > 1 else ""):
        return
    shell = Shell(session)
    namespace: Any = builtins
    namespace.get_ipython = lambda: shell
    namespace.display = lambda *_, **__: None


def _imports_ipython(script: str) -> bool:
    path = Path(script)
    try:
        return path.is_file() and path.stat().st_size <= _MAX_BYTES and _USES_IPYTHON in path.read_bytes()
    except (OSError, ValueError):
        return False


class Shell:
    """The calls that nbconvert writes for magic and shell lines; everything else is taken and ignored."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run_cell_magic(self, name: str, line: str, cell: str = "") -> None:
        """The Python of a cell that is timed or captured."""
        if name in _AROUND:
            self._python(cell)
        else:
            self._skip(f"%%{name}")

    def run_line_magic(self, name: str, line: str = "", *_more: Any) -> None:
        """A statement that is timed, another script, a variable or a folder."""
        if name in _AROUND:
            self._python(_statement(line))
        elif name == "run" and line.strip():
            self._names().update(runpy.run_path(line.split()[0], run_name="__main__"))
        elif name in ("env", "set_env") and line.strip():
            key, _, value = line.replace("=", " ", 1).strip().partition(" ")
            if value:
                os.environ[key] = value.strip()
        elif name == "cd" and Path(line.strip()).is_dir():
            os.chdir(line.strip())

    def magic(self, text: str) -> None:
        """What old exports write for a line magic."""
        name, _, line = text.partition(" ")
        self.run_line_magic(name.lstrip("%"), line)

    def system(self, command: str) -> None:
        """Shell lines install packages and fetch data."""
        self._skip(f"!{command}")

    def getoutput(self, command: str, *_: Any, **__: Any) -> list[str]:
        """As a command that prints nothing."""
        self._skip(f"!{command}")
        return []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def _python(self, source: str) -> None:
        code = "\n".join("pass" if line.lstrip()[:1] in ("!", "%") else line for line in source.splitlines())
        exec(compile(code, "<cell>", "exec"), self._names())

    def _names(self) -> dict[str, Any]:
        return sys.modules["__main__"].__dict__

    def _skip(self, what: str) -> None:
        self._session.writer.stand_in(what[:80], "shell lines and cells of other languages are left out")


def _statement(line: str) -> str:
    """What follows a magic's own options (``-n 10 -r 3 f(x)``)."""
    rest = line.strip()
    while rest.startswith("-"):
        option, _, rest = rest.partition(" ")
        rest = rest.strip()
        if len(option) == 2 and rest[:1].isdigit():
            rest = rest.partition(" ")[2].strip()
    return rest
