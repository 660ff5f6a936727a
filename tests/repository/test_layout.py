"""The repository is laid out as the architecture says: links, folders and packages are the same set."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKS = ROOT / "src" / "kopt"


def linked() -> set[str]:
    return {path.name for path in LINKS.iterdir() if path.is_symlink()}


def packages() -> set[str]:
    """Root folders that hold a package of the product (tests and benchmarks are not shipped)."""
    return {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}


def modules(folder: Path) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in folder.rglob("*.py") if "__pycache__" not in path.parts}


def test_every_package_has_a_link_and_every_link_a_package() -> None:
    assert linked() == packages()


def test_links_are_relative_and_lead_to_their_own_folder() -> None:
    for name in linked():
        assert str((LINKS / name).readlink()) == f"../../{name}"


def test_only_two_real_files_stand_beside_the_links() -> None:
    real = {path.name for path in LINKS.iterdir() if not path.is_symlink() and path.name != "__pycache__"}
    assert real == {"__init__.py", "py.typed"}


def test_every_folder_of_the_product_says_what_lives_there() -> None:
    for name in packages():
        text = (ROOT / name / "__init__.py").read_text(encoding="utf-8")
        assert text.lstrip().startswith('"""'), f"{name}/__init__.py has no docstring"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clean copy of the tracked and new files."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    with tarfile.open(tmp_path / "tree.tar", "w") as tar:
        for name in listing:
            if (ROOT / name).is_symlink() or (ROOT / name).exists():
                tar.add(ROOT / name, arcname=name)
    with tarfile.open(tmp_path / "tree.tar") as tar:
        tar.extractall(tmp_path / "tree", filter="tar")
    return tmp_path / "tree"


def build(tree: Path, *options: str) -> Path:
    """The folder with the wheel, or with an sdist and the wheel that is built from it."""
    made = tree.parent / "dist"
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(made), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return made


DATA_SUFFIXES = {".toml", ".json", ".safetensors", ".txt", ".html", ".css", ".js", ".svg"}


def check_wheel(made: Path) -> None:
    with zipfile.ZipFile(next(made.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    expected = {f"kopt/{module}" for name in packages() for module in modules(ROOT / name)}
    assert expected <= names, sorted(expected - names)
    shipped = [path for name in packages() for path in (ROOT / name).rglob("*") if path.suffix in DATA_SUFFIXES]
    missing = {f"kopt/{path.relative_to(ROOT)}" for path in shipped if "__pycache__" not in path.parts} - names
    assert not missing, sorted(missing)
    assert "kopt/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "kopt/tests"))]


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_data_file(tree: Path) -> None:
    check_wheel(build(tree, "--wheel"))


@pytest.mark.slow
@pytest.mark.long
def test_an_sdist_is_built_too_and_a_wheel_from_it_holds_the_same(tree: Path) -> None:
    made = build(tree)
    with tarfile.open(next(made.glob("*.tar.gz"))) as sdist:
        assert any(name.endswith("/pyproject.toml") for name in sdist.getnames())
    check_wheel(made)
