"""Packs kubectl's plugin for krew: an archive, and the manifest that names it with its digest.

    python deploy/krew/package.py build/krew https://host/releases/kubectl-kopt.tar.gz

    kubectl krew install --manifest build/krew/kopt.yaml --archive build/krew/kubectl-kopt.tar.gz

The plugin is a shell script that calls `kopt`. Where kopt is installed with pip, `kubectl kopt` works without krew.
The same files give the same bytes.
"""

import gzip
import hashlib
import io
import sys
import tarfile
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE, MANIFEST = "kubectl-kopt.tar.gz", "kopt.yaml"
_FILES = {"kubectl-kopt": ROOT / "deploy/krew/kubectl-kopt", "LICENSE": ROOT / "LICENSE"}


def archive() -> bytes:
    """The plugin and the licence, which krew wants beside it."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for name, path in sorted(_FILES.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, 0o755 if name == "kubectl-kopt" else 0o644
            tar.addfile(entry, io.BytesIO(path.read_bytes()))
    return packed.getvalue()


def manifest(packed: bytes, url: str) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    platforms = [
        {
            "selector": {"matchLabels": {"os": system}},
            "uri": url,
            "sha256": hashlib.sha256(packed).hexdigest(),
            "bin": "kubectl-kopt",
        }
        for system in ("linux", "darwin")
    ]
    spec = {
        "version": f"v{project['version']}",
        "shortDescription": "Why GPU jobs wait, and what they need",
        "description": (
            "`kubectl kopt why JOB` says why a GPU job does not run, was evicted, moved or resized; "
            "`kubectl kopt queue` lists what waits and runs.\n"
        ),
        "caveats": "Needs kopt (pip install kaiwo-optimizer) or uv on the PATH.\n",
        "platforms": platforms,
    }
    plugin = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "kopt"},
        "spec": spec,
    }
    return yaml.safe_dump(plugin, sort_keys=False)


def main(folder: Path, url: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    packed = archive()
    (folder / ARCHIVE).write_bytes(packed)
    (folder / MANIFEST).write_text(manifest(packed, url), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].startswith("https://"):
        sys.exit("usage: package.py FOLDER https://…/kubectl-kopt.tar.gz")
    main(Path(sys.argv[1]), sys.argv[2])
