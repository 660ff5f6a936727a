"""Finds the interpreter whose environment a script needs: the active one that has torch. Nothing is started."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path


class NoInterpreterError(LookupError):
    """No interpreter with torch; the message says what to give."""


def find_interpreter(requested: str | None = None) -> str:
    """The path of ``requested``, else of the active environment's interpreter, else of this one, else of the PATH's.

    Raises NoInterpreterError when ``requested`` is not there, or none of them has torch.
    """
    if requested is not None:
        result = shutil.which(requested)
        if result is None:
            raise NoInterpreterError(f"{requested} is no program; give the path of the Python that runs the script")
        return str(Path(result).absolute())
    for candidate in _candidates():
        if has_torch(candidate):
            return candidate
    raise NoInterpreterError(
        "no Python with torch is active here; name the one that runs the script with --python PATH"
    )


def has_torch(python: str) -> bool:
    """Whether torch lies in the site-packages of an interpreter's environment, or of the one it is based on."""
    prefixes = {Path(python).absolute().parent.parent, Path(python).resolve().parent.parent}
    patterns = (f"{library}/python*/{kind}-packages" for library in ("lib", "lib64") for kind in ("site", "dist"))
    folders = (folder for pattern in patterns for prefix in prefixes for folder in prefix.glob(pattern))
    return any((folder / "torch" / "version.py").is_file() for folder in folders)


def _candidates() -> Iterator[str]:
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(variable):
            yield str(Path(os.environ[variable]) / "bin" / "python")
    yield sys.executable
    for name in ("python3", "python"):
        if result := shutil.which(name):
            yield result
