"""The image definitions: what they copy exists, what they install is the lock file's, nothing runs as root."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "deploy" / "images"
EXTRAS = ("controllers", "serving", "training", "agents", "staging")
TEXT = (IMAGES / "Dockerfile").read_text(encoding="utf-8")

_spec = spec_from_file_location("locked", IMAGES / "locked.py")
assert _spec is not None
assert _spec.loader is not None
locked = module_from_spec(_spec)
_spec.loader.exec_module(locked)


def stages() -> dict[str, tuple[str, list[str]]]:
    """Name of each stage with its base and its instructions, continued lines joined."""
    found: dict[str, tuple[str, list[str]]] = {}
    lines = [line for line in TEXT.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    for line in lines:
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            found[match[2]] = (match[1], [])
        elif found:
            found[list(found)[-1]][1].append(line)
    return found


def lock_of(*extras: str) -> set[str]:
    """Names of the packages in an image's part of the lock file."""
    command = [sys.executable, "-P", str(IMAGES / "locked.py"), *extras]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^([a-z0-9.-]+)==", text, re.MULTILINE))


def needed_by(extra: str) -> set[str]:
    """What the installed packages themselves say an extra needs, all the way down, on this machine."""
    found: set[str] = set()
    waiting = locked.roots((ROOT / "pyproject.toml").read_text(), [extra])
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.add(canonicalize_name(requirement.name))
    return found


def test_each_extra_has_its_image() -> None:
    assert set(EXTRAS) <= set(stages())
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    # That of OpenFeature is for programs of others.
    assert set(EXTRAS) == set(optional) - {"dev", "data", "docs", "mcp", "openfeature", "compliance"}


def test_everything_that_is_copied_exists() -> None:
    copied = [line.split()[1:-1] for _, lines in stages().values() for line in lines if line.startswith("COPY ")]
    local = [source for sources in copied for source in sources if not sources[0].startswith("--from=")]
    assert "requirements.lock" in local
    assert [source for source in local if not (ROOT / source).exists()] == []
    assert {line[0].removeprefix("--from=") for line in copied if line[0].startswith("--from=")} <= set(stages())


def test_every_package_of_the_product_is_in_the_wheel_stage() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert {f"COPY {name} {name}" for name in packages} <= set(stages()["wheel"][1])


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_image_runs_as_nobody_and_holds_only_an_environment(extra: str) -> None:
    _, lines = stages()[extra]
    assert lines == [f"COPY --from={extra}-environment /opt/kopt /opt/kopt", "USER 65532:65532"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_image_installs_what_its_extra_needs_and_the_lock_file_says(extra: str) -> None:
    (line,) = stages()[f"{extra}-environment"][1]
    extras = line.removeprefix("RUN deploy/images/install.sh ").split()
    assert extras[0] == extra
    missing = needed_by(extra) - lock_of(*extras)
    assert not missing


def test_the_control_planes_image_holds_no_machine_learning_stack() -> None:
    heavy = {"ray", "mlflow", "feast", "torch", "lightgbm", "scikit-learn", "pandas", "pyarrow"}
    for extra in ("controllers", "agents", "staging"):
        assert not lock_of(extra) & heavy
    assert heavy - {"torch", "scikit-learn"} <= lock_of("serving")


def test_every_package_is_pinned_by_hash() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    for entry in locked.entries(lock):
        assert "--hash=sha256:" in entry.text, entry.name
    for line in (IMAGES / "install.sh").read_text().splitlines():
        if "install" in line and line.startswith("pip"):
            assert "--require-hashes" in line or "--no-index" in line


def test_an_unknown_extra_and_a_lock_file_that_lags_behind_are_refused() -> None:
    with pytest.raises(locked.LockError, match="no extra 'gpus'; it has agents"):
        locked.roots((ROOT / "pyproject.toml").read_text(), ["gpus"])
    with pytest.raises(locked.LockError, match=r"has no newcomer; .*make lock"):
        locked.closure((ROOT / "requirements.lock").read_text(), {"newcomer"})


def test_a_base_image_without_a_digest_is_refused() -> None:
    def rc(image: str) -> int:
        return subprocess.run([IMAGES / "pinned.sh", image], capture_output=True, check=False).returncode

    digest = "sha256:" + "a1" * 32
    assert rc(f"python:3.11-slim@{digest}") == 0
    assert rc(f"registry.example.com:5000/python@{digest}") == 0
    for wrong in ("", "python", "python:3.11-slim", "python@sha256:", f"python@{digest[:-1]}", f"python @{digest}"):
        assert rc(wrong) == 1, wrong
    assert rc((IMAGES / "base.lock").read_text().strip()) == 0, "what is committed is named by its digest"
    assert re.findall(r"^ARG PYTHON_IMAGE.*$", TEXT, re.MULTILINE)[0] == "ARG PYTHON_IMAGE", "there is no default"
    bases = {base for base, _ in stages().values() if base not in stages()}
    assert bases == {"${PYTHON_IMAGE}"}
    assert 'RUN deploy/images/pinned.sh "$PYTHON_IMAGE"' in stages()["wheel"][1][:4], "before anything is built"


def test_an_image_has_a_bill_of_what_it_installs(tmp_path: Path) -> None:
    def write(*names: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", IMAGES / "sbom.py", tmp_path, *names]
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)

    assert f"there are {', '.join(('controllers', 'agents', 'staging', 'serving', 'training'))}" in write("gpus").stderr
    assert write("staging").returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["kopt-staging.cdx.json"]
    bill = json.loads((tmp_path / "kopt-staging.cdx.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "kaiwo-optimizer")
    (line,) = stages()["staging-environment"][1]
    named = {canonicalize_name(one["name"]) for one in bill["components"]}
    assert named == lock_of(*line.removeprefix("RUN deploy/images/install.sh ").split())
    for one in bill["components"]:
        assert one["version"], one["name"]
        hashes = [each for place in one["externalReferences"] for each in place.get("hashes", ())]
        assert {each["alg"] for each in hashes} == {"SHA-256"}, one["name"]
