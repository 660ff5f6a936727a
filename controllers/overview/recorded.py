"""What components of ours did to a job, by the audit log that the prediction endpoint keeps."""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.controllers.overview.text import ago, sentence
from kopt.core.audit import AuditError, read_record

if TYPE_CHECKING:
    from kopt.core.audit import StoredRecord

_EACH, _MOST = 20, 5
_DEADLINE_S = 2.0
"""The answer about the job does not wait for longer."""


@dataclass(frozen=True)
class Action:
    """``at_s`` is Unix time by the clock of the component; ``kind`` is write, event or decision."""

    at_s: float
    component: str
    kind: str
    verb: str
    object_kind: str
    name: str
    text: str

    def line(self, now_s: float) -> str:
        """For people."""
        done = f"{self.verb} {self.object_kind} {self.name}"
        return f"{self.component}, {ago(self.at_s, now_s)}: {done}: {sentence(self.text, 200)}"


async def recorded_actions(url: str, namespace: str, objects: Collection[tuple[str, str]]) -> tuple[Action, ...]:
    """The newest first, of objects by kind and name; none where the endpoint does not answer, or does not show them to
    the caller."""
    # Not before it is needed: every `kopt` that reads a cluster imports this package.
    from kopt.serving.client.client import AsyncPredictionClient
    from kopt.serving.client.transport import EndpointFailure, RequestRefused
    from kopt.serving.contract.audit_answers import AuditQuery
    from kopt.serving.contract.common import AnswerError

    stored: list[StoredRecord] = []
    try:
        async with asyncio.timeout(_DEADLINE_S), AsyncPredictionClient(url, deadline_s=_DEADLINE_S) as client:
            for name in dict.fromkeys(name for _, name in objects):
                answer = await client.audit(AuditQuery(namespace=namespace, name=name, limit=_EACH))
                stored += [item.stored for item in answer.records]
    except (EndpointFailure, RequestRefused, AnswerError, TimeoutError):
        return ()
    actions = [action for action in _actions(stored) if (action.object_kind, action.name) in objects]
    return tuple(sorted(actions, key=lambda action: -action.at_s)[:_MOST])


def _actions(stored: "Iterable[StoredRecord]") -> "Iterator[Action]":
    for each in stored:
        try:
            entry = read_record(each.record)
        except AuditError:
            # `kopt audit verify` says what is wrong with it.
            continue
        yield Action(entry.at_s, entry.component, entry.kind, entry.verb, entry.object_kind, entry.name, entry.summary)
