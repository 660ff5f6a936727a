"""The prediction endpoint as commands use it: patient, and with a clear word when it does not answer."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kopt.cli.errors import Refused
from kopt.cli.output import printable
from kopt.core.redaction import redact, redact_arguments
from kopt.core.settings import Settings

if TYPE_CHECKING:
    from kopt.serving.client.blocking import PredictionClient

DEADLINE_S = 30.0
_MAX_SCRIPT_BYTES = 2 << 20
_LONGEST_NAME = 253


@contextlib.contextmanager
def endpoint(settings: Settings) -> "Iterator[PredictionClient]":
    """A client of the endpoint; an endpoint that does not answer is Refused with what to do."""
    from kopt.serving.client.blocking import PredictionClient
    from kopt.serving.client.transport import EndpointFailure

    try:
        with PredictionClient(settings.endpoint, deadline_s=DEADLINE_S) as client:
            yield client
    except EndpointFailure as error:
        raise Refused(unanswered(settings, str(error))) from error


def unanswered(settings: Settings, why: str) -> str:
    """What to say when the endpoint does not answer."""
    return (
        f"the prediction endpoint {settings.endpoint} gives no answer ({why.rstrip('.')}); `kopt up` starts one here, "
        "KOPT_URL names another"
    )


def sizing_question(
    command: str | Sequence[str] | Mapping[str, Any], gpu: str | None = None, world_size: int | None = None
) -> dict[str, Any]:
    """The body for ``/v1/sizing`` about a command or a manifest, with the name that its advice has.

    A script goes by its text, so that another one of its name is another job type.
    """
    from kopt.formats.entrypoint import EntrypointError, Kind, what_runs

    options = {key: value for key, value in (("gpu", gpu), ("world_size", world_size)) if value is not None}
    if isinstance(command, Mapping):
        metadata = command.get("metadata")
        named = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, Mapping) else None
        # YAML knows moments of time, which JSON writes as text.
        plain = json.loads(json.dumps(command, default=str))
        return options | {"workload": plain, "name": str(named or "workload")[:_LONGEST_NAME]}
    command_line = command if isinstance(command, str) else list(command)
    redacted = redact(command_line) if isinstance(command_line, str) else " ".join(redact_arguments(command_line))
    name = printable(redacted)[:_LONGEST_NAME]
    try:
        entrypoint = what_runs(command_line, lambda _: None)
    except EntrypointError:
        return options | {"workload": command_line, "name": name}
    path = Path(entrypoint.script)
    if entrypoint.kind is not Kind.SCRIPT or path.suffix != ".py" or not _is_small_file(path):
        return options | {"workload": command_line, "name": name}
    text = path.read_text(encoding="utf-8", errors="replace")
    script = {"script": text, "arguments": list(entrypoint.arguments), "name": printable(path.name)}
    launched = {} if entrypoint.world_size is None else {"world_size": entrypoint.world_size}
    return launched | options | {"workload": script, "name": printable(path.name)[:_LONGEST_NAME]}


def _is_small_file(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _MAX_SCRIPT_BYTES
