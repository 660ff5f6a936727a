"""The folders that a Python imports from, read from its files: nothing of the environment is started for it.

An environment is as hostile as the script: a ``.pth`` file, a ``sitecustomize`` or the interpreter itself runs
whatever its author likes. What it names is shown to what runs confined, so names count only where imports may lie.
"""

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_LIBRARIES = ("lib", "lib64")
_LIBRARY = re.compile(r"(python|pypy)\d+(\.\d+)?t?")
_PROGRAM = re.compile(r"py", re.IGNORECASE)
_MAX_BYTES, _MAX_ENTRIES, _MAX_PATHS = 64 << 10, 20_000, 200
_PRIVATE_PLACES = (
    "/boot",
    "/dev",
    "/etc",
    "/proc",
    "/root",
    "/run",
    "/sys",
    "/var/backups",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/mail",
    "/var/spool",
)
_MODULES = (".py", ".so", ".pyc")


class NoPythonError(LookupError):
    """The program is no Python with a library; the message says so."""


def python_folders(python: str | Path) -> tuple[str, ...]:
    """Prefixes, site-packages and paths of ``.pth`` files of an interpreter, resolved.

    Left out are homes and what lies above them, hidden folders of a home outside the prefixes, the system's folders of
    secrets, and folders without modules.

    Raises NoPythonError where there is no such program, or no Python library beside it.
    """
    program = Path(shutil.which(python) or python).absolute()
    prefixes = _prefixes(program)
    if not program.is_file():
        raise NoPythonError(f"{python} does not work as a Python interpreter: there is no such program")
    if not prefixes and _is_script(program):
        return (str(program),)  # what it starts is not known from here; confined, it sees the system's folders
    if not prefixes or not (_PROGRAM.search(program.name) or _PROGRAM.search(program.resolve().name)):
        raise NoPythonError(f"{python} does not work as a Python interpreter: no Python library lies beside it")
    libraries = [library for prefix in prefixes for library in _libraries(prefix)]
    packages = [library / kind for library in libraries for kind in ("site-packages", "dist-packages")]
    packages += [_user_base() / "lib" / library.name / "site-packages" for library in libraries]
    visible = {str(path) for prefix in prefixes for path in _visible_folders(prefix)}
    named = {folder.resolve() for folder in packages if folder.is_dir()}
    named |= {path for folder in packages if folder.is_dir() for path in _named(folder)}
    visible |= {str(path) for path in named if _may_be_visible(path, visible) and _holds_modules(path)}
    return tuple(sorted(visible))


def program_folders(program: str) -> tuple[str, ...]:
    """What must be visible to start a program: it and, for an interpreter, its prefixes."""
    path = Path(shutil.which(program) or program).absolute()
    visible = {str(folder) for prefix in _prefixes(path) for folder in _visible_folders(prefix)}
    return tuple(sorted({str(path), str(path.resolve()), *visible}))


def read_small(path: Path) -> str:
    """The text of a small regular file; "" for pipes, devices, folders, loops of links, and what is larger."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return ""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        content = file.read(_MAX_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    return content.decode("utf-8", "replace") if len(content) <= _MAX_BYTES else ""


def _prefixes(program: Path) -> list[Path]:
    """Of an interpreter in some ``bin``: by its name, by where links lead, and the base that ``pyvenv.cfg`` names."""
    with contextlib.suppress(OSError, RuntimeError):
        candidates = [path.parent.parent for path in (program, program.resolve()) if path.parent.name == "bin"]
        bases = [base for prefix in candidates for base in _base(prefix)]
        root = _shims_of(program)
        versions = _entries(root / "versions") if root is not None else []
        prefixes = {prefix.resolve() for prefix in (*candidates, *bases, *versions) if _is_prefix(prefix)}
        return sorted(prefixes if root is None else {*prefixes, root})
    return []


def _shims_of(program: Path) -> Path | None:
    """pyenv's folder, for its scripts that choose one of the interpreters in it."""
    root = program.parent.parent
    is_shim = program.parent.name == "shims" and (root / "versions").is_dir() and not _is_home_or_above(root)
    return root.resolve() if is_shim else None


def _is_script(program: Path) -> bool:
    with contextlib.suppress(OSError), program.open("rb") as file:
        return file.read(2) == b"#!"
    return False


def _base(prefix: Path) -> Iterator[Path]:
    for line in read_small(prefix / "pyvenv.cfg").splitlines():
        key, _, value = line.partition("=")
        if key.strip().lower() == "home" and value.strip().startswith("/"):
            yield Path(value.strip()).parent


def _is_prefix(folder: Path) -> bool:
    """Whether a Python library or the mark of a virtual environment lies there."""
    return any((library / "os.py").is_file() or (library / "site-packages").is_dir() for library in _libraries(folder))


def _libraries(prefix: Path) -> list[Path]:
    return [
        entry
        for name in _LIBRARIES
        for entry in _entries(prefix / name)
        if _LIBRARY.fullmatch(entry.name) and entry.is_dir()
    ]


def _entries(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in islice(entries, _MAX_ENTRIES)]
    except OSError:
        return []


def _visible_folders(prefix: Path) -> Iterator[Path]:
    """A prefix as a whole; of one that is a home or above it only its Python."""
    if not _is_home_or_above(prefix):
        yield prefix
    elif prefix != Path("/"):
        yield from (library.resolve() for library in _libraries(prefix))


def _named(packages: Path) -> Iterator[Path]:
    """Folders that a site-packages folder adds to the path, resolved."""
    entries = _entries(packages)
    texts = [(read_small(entry), packages) for entry in entries if entry.suffix in (".pth", ".egg-link")]
    lines = (packages / line.strip() for text, packages in texts for line in text.splitlines() if _is_path(line))
    for path in islice(lines, _MAX_PATHS):
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            yield path.resolve()


def _is_path(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(("#", "import ", "import\t")) and "\0" not in line


def _user_base() -> Path:
    return Path(os.environ.get("PYTHONUSERBASE") or Path.home() / ".local")


def _is_home_or_above(folder: Path) -> bool:
    home = Path.home().resolve()
    return folder == home or folder in home.parents


def _may_be_visible(folder: Path, prefixes: set[str]) -> bool:
    if any(folder.is_relative_to(prefix) for prefix in (*prefixes, str(_user_base() / "lib"))):
        return True
    home = Path.home().resolve()
    if folder.is_relative_to(home):
        return folder != home and not any(part.startswith(".") for part in folder.relative_to(home).parts)
    return not _is_home_or_above(folder) and not any(folder.is_relative_to(private) for private in _PRIVATE_PLACES)


def _holds_modules(folder: Path) -> bool:
    """Whether something there can be imported: a module, a package, or an archive of them."""
    if folder.is_file():
        return folder.suffix in (".zip", ".egg")
    return any(
        entry.suffix in _MODULES or (entry / "__init__.py").is_file() or entry.suffix == ".dist-info"
        for entry in _entries(folder)
    )
