"""The profiler as one file that runs in any container with a Python 3.11 or newer, and the script that starts it.

    install(Path("/kopt"))        in an init container of our image
    /kopt/profile -- python train.py

The archive holds this package, what it imports of ``core`` and ``formats``, and ``pynvml`` where it is installed. A
Python that lies in ``/kopt/python`` comes first, for images that have none or an old one.
"""

import importlib.util
import shutil
import zipapp
from pathlib import Path
from tempfile import TemporaryDirectory

_PACKAGES = ("agents/profiler", "core", "formats/gpu_metrics")
_SCRIPT = """#!/bin/sh
# Starts the profiler with the first Python that is new enough; the command behind -- runs in the image's own.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
for python in "$here/python/bin/python3" python3 python3.14 python3.13 python3.12 python3.11 python; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        exec "$python" -I "$here/profile.pyz" "$@"
    fi
done
echo "profile: no Python 3.11 or newer in this image" >&2
exit 69
"""


def install(folder: Path, runtime: Path | None = None) -> Path:
    """Write the archive and the script into a folder, with the relocatable Python of ``runtime`` beside them if there
    is one; the script's path. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(__file__).parents[2]
    with TemporaryDirectory() as scratch:
        package = Path(scratch) / "kopt"
        package.mkdir()
        (package / "__init__.py").write_text('"""The dry-run profiler, cut out of Kaiwo Optimizer."""\n')
        for part in _PACKAGES:
            shutil.copytree(root / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
            for parent in (package / part).relative_to(package).parents:
                (package / parent / "__init__.py").touch()
        nvml = importlib.util.find_spec("pynvml")
        if nvml is not None and nvml.origin is not None:
            shutil.copy(nvml.origin, scratch)
        zipapp.create_archive(
            scratch, folder / "profile.pyz", main="kopt.agents.profiler.command:main_and_exit", compressed=True
        )
    if runtime is not None and runtime.is_dir():
        shutil.copytree(runtime, folder / "python", symlinks=True, dirs_exist_ok=True)
    script = folder / "profile"
    script.write_text(_SCRIPT)
    script.chmod(0o755)
    return script
