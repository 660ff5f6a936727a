"""What components of ours did to a job, as ``kopt why`` words it."""

import asyncio
from collections.abc import Collection

from kopt.controllers.overview.text import ago, sentence
from kopt.core.recorded_actions import RecordedAction

_DEADLINE_S = 2.0
"""The answer about the job does not wait for longer."""


def line(action: RecordedAction, now_s: float) -> str:
    """For people."""
    done = f"{action.verb} {action.object_kind} {action.name}"
    return f"{action.component}, {ago(action.at_s, now_s)}: {done}: {sentence(action.text, 200)}"


async def recorded_actions(
    url: str, namespace: str, objects: Collection[tuple[str, str, str]]
) -> tuple[RecordedAction, ...]:
    """The newest first, of objects by kind, name and uid; none where the endpoint does not answer, or does not show
    them to the caller."""
    # Not before it is needed: every `kopt` that reads a cluster imports this package.
    from kopt.serving.client.client import AsyncPredictionClient
    from kopt.serving.client.recorded import actions_on
    from kopt.serving.client.transport import EndpointFailure, RequestRefused
    from kopt.serving.contract.common import AnswerError

    try:
        async with asyncio.timeout(_DEADLINE_S), AsyncPredictionClient(url, deadline_s=_DEADLINE_S) as client:
            return await actions_on(client, namespace, objects)
    except (EndpointFailure, RequestRefused, AnswerError, TimeoutError):
        return ()
