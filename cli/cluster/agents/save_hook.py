"""``kopt agent save-hook``: a command for each request to save."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.errors import usage_error


def save_hook(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="What makes the program save.")],
    file: Annotated[Path, typer.Option(metavar="FILE", help="The pod's annotations, by the downward API.")] = Path(
        "/etc/podinfo/annotations"
    ),
    every: Annotated[float, typer.Option(metavar="SECONDS", help="Between two looks at the file.")] = 1.0,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="A command that takes longer is ended.")] = 600.0,
) -> None:
    """Run a command once for each new request to save, until a signal comes.

    For programs that cannot use kopt.saving: it runs beside them in the same container or pod, whose template says
    kaiwo.ai/saves-on-request: "true" and mounts metadata.annotations at /etc/podinfo. The command finds KOPT_SAVE_AT,
    KOPT_SAVE_UNTIL (Unix seconds), KOPT_SAVE_BY and KOPT_SAVE_REASON in its environment. One that fails is not run
    again for the same request. A file that is missing, torn or too large counts as no request.

    Examples:

        kopt agent save-hook -- touch /shared/save-now

        kopt agent save-hook --file /etc/podinfo/annotations -- sh -c 'kill -USR1 "$(cat /tmp/train.pid)"'
    """
    from kopt.agents.checkpoint_hook.hook import HookSettings, serve
    from kopt.agents.runtime.running import log_to_stderr

    if not (every > 0 and timeout > 0):
        usage_error("spans of time are positive", "--every" if not every > 0 else "--timeout")
    log_to_stderr()
    asyncio.run(serve(HookSettings(tuple(command), file, every, timeout)))
