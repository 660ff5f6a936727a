"""What components did to objects, by the audit log that the prediction endpoint keeps."""

from collections.abc import Collection, Mapping

from kopt.core.audit import StoredRecord
from kopt.core.recorded_actions import RecordedAction, actions_in
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.contract.audit_answers import AuditQuery

_EACH, _MOST = 20, 5


async def actions_on(
    client: AsyncPredictionClient, namespace: str, objects: Collection[tuple[str, str, str]]
) -> tuple[RecordedAction, ...]:
    """The five newest, the newest first, of objects by kind, name and uid; a uid that is empty is not known. What is
    recorded of an earlier object of the same name is left out. Raises as the client does."""
    uids: dict[tuple[str, str], set[str]] = {}
    for kind, name, uid in objects:
        uids.setdefault((kind, name), set()).update(filter(None, [uid]))
    stored: list[StoredRecord] = []
    for name in dict.fromkeys(name for _, name in uids):
        answer = await client.audit(AuditQuery(namespace=namespace, name=name, limit=_EACH))
        stored += [item.stored for item in answer.records]
    actions = [action for action in actions_in(stored) if _is_of(action, uids)]
    return tuple(sorted(actions, key=lambda action: -action.at_s)[:_MOST])


def _is_of(action: RecordedAction, uids: Mapping[tuple[str, str], set[str]]) -> bool:
    known = uids.get((action.object_kind, action.name))
    return known is not None and (not known or not action.uid or action.uid in known)
