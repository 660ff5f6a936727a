"""Reads sources of strangers in a confined process: parsing a hostile text can exhaust memory or crash the parser."""

import io
import json
import sys
import tempfile
from pathlib import Path

from kopt.formats.entrypoint import EntrypointError, ScriptFacts
from kopt.formats.entrypoint.script import MAX_SOURCE_CHARACTERS
from kopt.tracing.private_folders import private_folder
from kopt.tracing.sandbox import Limits, run_confined

LIMITS = Limits(wall_s=10.0, cpu_s=10, memory_bytes=1 << 30, processes=8, event_bytes=4 << 20)
_PROGRAM = """
import json, os, sys
sys.path.append({root!r})
from kopt.formats.entrypoint import EntrypointError, read_script
try:
    answer = read_script(open(sys.argv[1], encoding="utf-8").read()).to_dict()
except EntrypointError as refusal:
    answer = {{"refused": str(refusal)}}
with os.fdopen(int(os.environ["KOPT_EVENTS_FD"]), "w") as answers:
    json.dump(answer, answers)
"""


def read_script_confined(source: str, *, limits: Limits = LIMITS) -> ScriptFacts:
    """``formats.entrypoint.read_script`` with an end in time and bounded memory, whatever the source.

    Raises:
        EntrypointError: not Python, too large, or a text that the parser does not survive.
        ConfinementError: this machine cannot confine a process.
    """
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise EntrypointError(f"{len(source):,} characters are no script; give at most {MAX_SOURCE_CHARACTERS:,}")
    root = Path(__file__).parents[2]
    answers = io.BytesIO()
    with private_folder("kopt-source-", Path(tempfile.gettempdir())) as (folder, _):
        Path(folder, "source").write_text(source, encoding="utf-8", errors="replace")
        outcome = run_confined(
            [sys.executable, "-I", "-S", "-B", "-c", _PROGRAM.format(root=str(root)), "source"],
            cwd=folder,
            limits=limits,
            events=answers,
            readable=_package_folders(root),
        )
    try:
        answer = json.loads(answers.getvalue())
        if "refused" in answer:
            raise EntrypointError(str(answer["refused"]))
        return ScriptFacts.from_dict(answer)
    except EntrypointError:
        raise
    except (ValueError, TypeError, AttributeError):
        why = f"its {outcome.limit_hit} limit" if outcome.limit_hit else f"status {outcome.exit_status}"
        raise EntrypointError(f"reading the source ended at {why}; give the command's arguments instead") from None


def _package_folders(root: Path) -> tuple[Path, ...]:
    """The package, and where links in it lead."""
    package = root / "kopt"
    return (root, *sorted({entry.resolve() for entry in package.iterdir() if entry.is_dir()}))
