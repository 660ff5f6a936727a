"""MLflow's server reads and writes files for whoever asks: nothing here starts one without the gate in front."""

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository.source_files import ROOT, source_files

THE_PLACE = ROOT / "cli" / "training" / "tracking.py"
OPEN = ("server", "ui", "gateway")
"""MLflow's commands that serve, and ask nobody for a secret."""
COMMANDS = tuple(f"mlflow {command}" for command in OPEN)
APPLICATIONS = ("mlflow.server.fastapi_app", "mlflow.server.app", "mlflow.server:app", "mlflow.gateway.app")
# This test shows what it looks for, and guides say what not to do.
EXEMPT = {Path(__file__)}


def _commands(tree: ast.AST) -> Iterator[int]:
    """Lines with the words ``mlflow`` and ``server`` side by side, as arguments or in one text that is no docstring."""
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and node not in docstrings else ""
        if any(command in " ".join(str(text).split()) for command in COMMANDS):
            yield node.lineno  # type: ignore[attr-defined]
        words = [child.value if isinstance(child, ast.Constant) else None for child in _listed(node)]
        if any(first == "mlflow" and second in OPEN for first, second in itertools.pairwise(words)):
            yield node.lineno  # type: ignore[attr-defined]


def _listed(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.List | ast.Tuple):
        return node.elts
    return node.args if isinstance(node, ast.Call) else []


def _applications(tree: ast.AST) -> Iterator[int]:
    """Lines that import MLflow's application or name it for another program to import."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant):
            names = [str(node.value)]
        if any(name.startswith(APPLICATIONS) for name in names):
            yield node.lineno  # type: ignore[attr-defined]


def _has_gate(tree: ast.AST) -> bool:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Name) and call.id == "Gate" for call in calls)


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in source_files(".py"):
        text = path.read_text(encoding="utf-8")
        if "mlflow" in text and path not in EXEMPT:
            yield path, ast.parse(text)


@pytest.mark.parametrize(
    "code",
    [
        'run([sys.executable, "-m", "mlflow", "server", "--port", port])',
        'execlp("mlflow", "mlflow", "ui")',
        'run("exec mlflow  server --port 0", shell=True)',
        "COMMAND = ('mlflow', 'gateway')",
    ],
)
def test_commands_are_found_however_they_are_written(code: str) -> None:
    assert list(_commands(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "from mlflow.server.fastapi_app import app",
        "from mlflow.server import app",
        "import mlflow.server.fastapi_app as server",
        'uvicorn.run("mlflow.server.fastapi_app:app")',
        'run(["gunicorn", "mlflow.server:app"])',
    ],
)
def test_applications_are_found_however_they_are_named(code: str) -> None:
    assert list(_applications(ast.parse(code)))


def test_mlflows_own_server_is_started_nowhere() -> None:
    assert {str(path): lines for path, tree in _trees() if (lines := list(_commands(tree)))} == {}


def test_mlflows_application_stands_behind_the_gate() -> None:
    applications = {path: tree for path, tree in _trees() if list(_applications(tree))}
    assert THE_PLACE in applications, "this test finds nothing any more"
    assert [str(path) for path, tree in applications.items() if not _has_gate(tree)] == []


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".sh", ".toml", ".tpl", ""])
def test_no_manifest_image_or_script_starts_it(suffix: str) -> None:
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in source_files(suffix)}
    assert [str(path) for path, text in texts.items() if any(each in text for each in COMMANDS)] == []
