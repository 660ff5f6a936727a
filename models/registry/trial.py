"""A model is loaded in a process of its own before it is loaded here.

A signature says who made a model, not that its files are well made: trees and tensors are read by native code, which
can end, fill or stop a process. The first time a digest is seen it is loaded by a child under limits of CPU time,
memory and file size; what came of it is kept by digest in ``home/trials.json``.
"""

import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from kopt.models.registry.artifact import library_versions
from kopt.models.registry.locks import exclusive

TRIALS_FILE = "trials.json"
CPU_S, WITHIN_S = 60, 300.0
"""Processor time of a trial, and what a busy machine may make of it. The default models take three to five seconds."""
MEMORY_BYTES = 4 * 2**30
"""Data segment and private mappings; the libraries alone take less than 1 GiB."""
_FILE_BYTES = 2**20
_MOST_KEPT, _LAST_LINE_CHARACTERS = 500, 300
_GOOD = "loads"


class TrialError(ValueError):
    """A model that ends, overloads or fails the process that loads it."""


def try_once(name: str, folder: Path, digest: str, home: Path) -> None:
    """Load the model in a child unless this digest was tried before with these libraries.

    Raises TrialError for a model that failed, now or then.
    """
    key = f"{name} {digest}"
    with exclusive(home / "trials.lock", wait_s=WITHIN_S + 60):
        outcomes = _read(home / TRIALS_FILE)
        outcome = outcomes.get(key, {})
        if outcome.get("libraries") != library_versions():
            output = _child(name, folder)
            outcome = {"libraries": library_versions(), "said": output}
            _write(home / TRIALS_FILE, {**outcomes, key: outcome})
    if outcome["said"] != _GOOD:
        raise TrialError(f"in a trial process: {outcome['said']}")


def _child(name: str, folder: Path) -> str:
    """The outcome as text. Raises TrialError if it ran out of wall-clock time: that is not stored."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "kopt.models.registry.trial",
        name,
        str(folder),
        str(CPU_S),
        str(MEMORY_BYTES),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
        try:
            code = child.wait(WITHIN_S)
        except subprocess.TimeoutExpired as error:
            raise TrialError(f"in a trial process: not loaded in {WITHIN_S:g} s") from error
        finally:
            _end(child)
        return _GOOD if code == 0 else f"{_ending(code)}: {_last_line(output)}"


def _end(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    limit = f" (more than {CPU_S} s of processor time)" if -code in (signal.SIGXCPU, signal.SIGKILL) else ""
    return f"ended by {signal.Signals(-code).name}{limit}"


def _last_line(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - 4096))
    lines = [line for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    text = lines[-1] if lines else "it said nothing"
    return "".join(name if name.isprintable() else " " for name in text)[:_LAST_LINE_CHARACTERS]


def _read(path: Path) -> dict[str, Mapping[str, Any]]:
    """Outcomes by name and digest. A torn file is no outcome: every model is tried again."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    entries = result.items() if isinstance(result, dict) else ()
    return {key: entry for key, entry in entries if isinstance(entry, dict) and isinstance(entry.get("said"), str)}


def _write(path: Path, outcomes: Mapping[str, Mapping[str, Any]]) -> None:
    draft = path.with_name(f".{TRIALS_FILE}.{secrets.token_hex(8)}")
    draft.write_text(json.dumps(dict(list(outcomes.items())[-_MOST_KEPT:])), encoding="utf-8")
    draft.replace(path)


def main(name: str, folder: Path, cpu_s: int, memory_bytes: int) -> None:
    """Load a model under limits, in this process."""
    # A module that is compiled here would be kept cut off at the limit of files.
    sys.dont_write_bytecode = True
    for limit, amount in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        least = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(limit, (least, least))
    # LightGBM takes half of the time to look for scikit-learn, with which no predictor is loaded.
    sys.modules["sklearn"] = None  # type: ignore[assignment]
    from kopt.models.predictors import predictor_class

    predictor_class(name).load(folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
