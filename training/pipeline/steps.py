"""Steps of a training run whose results outlive the process.

A run's folder is named by the digest of everything its results depend on. A step is a folder below it that appears
whole or not at all; a step that is there is not computed again.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from kopt.models.registry.locks import exclusive

_DONE = "done.json"


class TrainingError(RuntimeError):
    """A training run that cannot go on; the message says what to do. What was finished stays."""


def digest_of(*parts: object) -> str:
    """sha256 of parts that JSON can hold, in hexadecimal."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def code_digest(modules: Iterable[ModuleType]) -> str:
    """sha256 of the modules' source: results of other code are not results of this code."""
    result = hashlib.sha256()
    for module in sorted(modules, key=lambda module: module.__name__):
        path = Path(str(module.__file__))
        files = sorted(path.parent.glob("*.py")) if path.name == "__init__.py" else [path]
        for file in files:
            result.update(f"{module.__name__}/{file.name}\n".encode() + file.read_bytes())
    return result.hexdigest()


class RunFolder:
    """The folder of one run: ``home/runs/<digest>``."""

    def __init__(self, home: Path, digest: str) -> None:
        self.digest = digest
        self.path = home / "runs" / digest
        self.path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the run for this process. Raises TrainingError when another process is working on it."""
        with ExitStack() as held:
            try:
                held.enter_context(exclusive(self.path / "lock", wait_s=1.0))
            except TimeoutError as error:
                text = f"another process is training the same model (run {self.digest[:8]}); wait for it"
                raise TrainingError(text) from error
            yield

    def step(self, name: str) -> Path:
        """Where a step's files lie, finished or not."""
        return self.path / name

    def has(self, name: str) -> bool:
        return (self.step(name) / _DONE).is_file()

    def result_of(self, name: str) -> Mapping[str, Any]:
        """What was noted when the step was finished. Raises TrainingError where it cannot be read."""
        path = self.step(name) / _DONE
        try:
            noted: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"{path} is damaged ({error}); delete the folder {self.path} and train again"
            ) from error
        return noted

    def compute(self, name: str, work: Callable[[Path], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Let ``work`` write a step's files into the folder it is given, unless that is done; returns its note."""
        if self.has(name):
            return self.result_of(name)
        self.path.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=self.path))
        try:
            noted = work(draft)
            (draft / _DONE).write_text(json.dumps(noted, sort_keys=True), encoding="utf-8")
            if self.step(name).exists():
                shutil.rmtree(self.step(name))
            draft.rename(self.step(name))
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return noted

    def replace(self, name: str, noted: Mapping[str, Any]) -> None:
        """Note something anew, whatever was noted before."""
        shutil.rmtree(self.step(name), ignore_errors=True)
        self.compute(name, lambda _: noted)

    def sweep(self) -> None:
        """Remove what killed processes left half done."""
        for draft in self.path.glob(".*-*"):
            shutil.rmtree(draft, ignore_errors=True)
