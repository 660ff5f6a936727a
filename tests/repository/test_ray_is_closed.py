"""Ray is started, and told how to authenticate and where to listen, in one place."""

import ast
import functools
from pathlib import Path

import pytest
import yaml
from repository.source_files import ROOT, source_files

THE_PLACE = ROOT / "serving" / "base" / "local_ray.py"
READERS = (
    "cli/local/checks.py",
    "cli/local/listening.py",
    "tests/attacks",
    "tests/cli",
    "tests/serving/test_serve.py",
    f"tests/repository/{Path(__file__).name}",
)
OURS = (THE_PLACE, *(ROOT / name for name in READERS))
"""The place itself; and the doctor, tests and attackers, who look at what is set."""
CODES = frozenset({"RAY_WORKERS"})
"""Reason codes, which look like Ray's variables."""
HARMLESS = ("RAY_USAGE_STATS_ENABLED", "RAY_SERVE_", "RAY_worker_niceness")


def _is_ours(path: Path) -> bool:
    return any(path == place or place in path.parents for place in OURS)


def _starts(tree: ast.Module) -> list[int]:
    """Lines that call ``ray.init``, by whatever name the module was imported."""
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "ray"
    } | {"ray"}
    direct = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "ray"
        for alias in node.names
        if alias.name == "init"
    }
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [
        call.lineno
        for call in calls
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "init"
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id in names
        )
        or (isinstance(call.func, ast.Name) and call.func.id in direct)
    ]


def _switches(tree: ast.Module) -> list[str]:
    """Names of Ray's environment that stand in the code and may open it."""
    words = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [
        word
        for word in words
        if word.startswith("RAY_") and word.isidentifier() and not word.startswith(HARMLESS) and word not in CODES
    ]


@functools.cache
def _trees() -> dict[Path, ast.Module]:
    """Modules that name Ray at all."""
    texts = {path: path.read_text(encoding="utf-8") for path in source_files(".py")}
    return {
        path: ast.parse(text)
        for path, text in texts.items()
        if "import ray" in text or "from ray" in text or "RAY_" in text
    }


def test_ray_is_started_in_one_place() -> None:
    assert _starts(_trees()[THE_PLACE]), "this test finds nothing any more"
    assert {
        str(path): lines for path, tree in _trees().items() if not _is_ours(path) and (lines := _starts(tree))
    } == {}


def test_ray_is_told_to_ask_for_a_token_in_one_place() -> None:
    assert "RAY_AUTH_MODE" in _switches(_trees()[THE_PLACE])
    assert {
        str(path): names for path, tree in _trees().items() if not _is_ours(path) and (names := _switches(tree))
    } == {}


@pytest.mark.parametrize("suffix", [".yaml", ".sh", ".toml", ""])
def test_no_manifest_image_or_script_turns_rays_token_off(suffix: str) -> None:
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in source_files(suffix)}
    assert texts
    assert [str(path) for path, text in texts.items() if "RAY_AUTH_MODE" in text or "RAY_AUTH_TOKEN" in text] == []


def test_the_ray_service_asks_for_a_token() -> None:
    text = (ROOT / "deploy" / "chart" / "templates" / "predictions" / "rayservice.yaml").read_text()
    (line,) = [line for line in text.splitlines() if line.strip().startswith("authOptions:")]
    assert yaml.safe_load(line) == {"authOptions": {"mode": "token"}}
