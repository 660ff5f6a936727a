"""Writes a software bill of materials (CycloneDX 1.6, JSON) for each image: its part of requirements.lock.

    python deploy/images/sbom.py build/sbom               # kopt-controllers.cdx.json and the others

    python deploy/images/sbom.py build/sbom staging       # one of them

Versions and hashes are the lock file's, which builds install from; the same lock gives the same bytes. What the base
image itself and apt bring is not in it: `docker buildx build --sbom=true` adds that where images are built.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import locked

IMAGES = Path(__file__).resolve().parent
_INSTALLS = re.compile(r"^FROM wheel AS (\S+)-environment\nRUN deploy/images/install\.sh (.+)$", re.MULTILINE)


def installed(dockerfile: str) -> Iterator[tuple[str, list[str]]]:
    """Each image with the extras that it is built of."""
    for name, extras in _INSTALLS.findall(dockerfile):
        yield name, extras.split()


def bill(extras: list[str]) -> str:
    """The bill of one image. Raises LockError for an extra, or a package, that is not there."""
    lock = (locked.ROOT / "requirements.lock").read_text(encoding="utf-8")
    project = locked.ROOT / "pyproject.toml"
    part = locked.closure(lock, locked.roots(project.read_text(encoding="utf-8"), extras))
    tool = Path(sys.executable).with_name("cyclonedx-py")
    command = [tool, "requirements", "--pyproject", project, "--output-reproducible", "--of", "JSON", "-"]
    return subprocess.run(command, input=part, capture_output=True, text=True, check=True).stdout


def main(folder: Path, names: list[str]) -> None:
    images = dict(installed((IMAGES / "Dockerfile").read_text(encoding="utf-8")))
    if unknown := sorted(set(names) - images.keys()):
        sys.exit(f"there is no image {', '.join(unknown)}; there are {', '.join(images)}")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or images:
        (folder / f"kopt-{name}.cdx.json").write_text(bill(images[name]), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: sbom.py FOLDER [IMAGE…]")
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except locked.LockError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"cyclonedx-py failed: {error.stderr}")
