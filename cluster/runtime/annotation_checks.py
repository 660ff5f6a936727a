"""What a controller's informers check on each object that it keeps: the annotations that it relies on.

    class Replica(LedReplica):
        goes_by = checks(EVICTING_ANNOTATION, REQUEST_ANNOTATION, holder="lending")

Each check raises AnnotationError with a sentence for the owner of the object, or ForgedError;
``cluster.runtime.isolation`` says it in an event.
"""

from collections.abc import Callable
from functools import partial

from kopt.cluster.client.resources import Object
from kopt.cluster.holds.hold import UNDO_ANNOTATION, check_undo, holder_of
from kopt.cluster.objects.annotations import Checks, ForgedError, json_of
from kopt.cluster.objects.seals import PROOF, SEAL, SEALED_KEYS
from kopt.core.workload.checkpoint_request import REQUEST_ANNOTATION


def checks(*names: str, holder: str = "") -> Checks:
    """Of annotations by their keys, and of the record of what ``holder`` holds."""
    result: dict[str, Callable[[Object], None]] = {}
    for name in names:
        result[name] = partial(_sealed if name in SEALED_KEYS else _plain, name)
    return result | ({UNDO_ANNOTATION: partial(_undo, holder)} if holder else {})


def _plain(name: str, document: Object) -> None:
    json_of(document["metadata"].get("annotations") or {}, name)


def _sealed(name: str, document: Object) -> None:
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    if name == REQUEST_ANNOTATION and PROOF not in (json_of(annotations, name) or {}):
        # A user's own request: programs heed it, and no controller does.
        return
    try:
        SEAL.read(name, metadata.get("uid", ""), annotations.get(name))
    except ForgedError:
        # Without the shared key forgeries cannot be recognised.
        if SEAL.shared:
            raise


def _undo(holder: str, document: Object) -> None:
    if holder_of(document) == holder:
        check_undo(document)
