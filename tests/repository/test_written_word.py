"""What the repository says about itself stays true: targets, records of decisions, addresses."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_make_target_the_readme_names_exists() -> None:
    named = set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named
    assert named <= targets


def test_decision_records_are_numbered_without_holes_and_have_their_sections() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))
    for path in records:
        text = path.read_text(encoding="utf-8")
        for section in ("## Context", "## Decision", "## Drawbacks", "## Alternatives"):
            assert section in text, f"{path.name} has no {section}"


def test_the_lock_file_names_no_download_address() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "--hash=sha256:" in lock
    assert "://" not in lock


def test_every_direct_dependency_earns_its_place_in_a_record() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lists = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    names = set(re.findall(r'^\s*"?(?:[a-z]+ = \[)?"?([A-Za-z][\w.-]*)[\[><=]', lists, re.MULTILINE))
    record = (ROOT / "docs" / "adr" / "0002-dependencies.md").read_text(encoding="utf-8").lower()
    absent = {name for name in names if name.lower() not in record} - {"kaiwo-optimizer", "dependencies"}
    assert not absent


def test_no_tracked_file_is_a_pickle() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not [name for name in tracked.splitlines() if name.endswith((".pkl", ".pickle", ".joblib", ".pt", ".pth"))]
