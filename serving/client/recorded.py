"""What components did to objects, by the audit log that the prediction endpoint keeps."""

from collections.abc import Collection

from kopt.core.audit import StoredRecord
from kopt.core.recorded_actions import RecordedAction, actions_in
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.contract.audit_answers import AuditQuery

_EACH, _MOST = 20, 5


async def actions_on(
    client: AsyncPredictionClient, namespace: str, objects: Collection[tuple[str, str]]
) -> tuple[RecordedAction, ...]:
    """The five newest, the newest first, of objects by kind and name. Raises as the client does."""
    stored: list[StoredRecord] = []
    for name in dict.fromkeys(name for _, name in objects):
        answer = await client.audit(AuditQuery(namespace=namespace, name=name, limit=_EACH))
        stored += [item.stored for item in answer.records]
    actions = [action for action in actions_in(stored) if (action.object_kind, action.name) in objects]
    return tuple(sorted(actions, key=lambda action: -action.at_s)[:_MOST])
