"""``GET /v1/why/{namespace}/{kind}/{name}``: the answer of ``kopt why`` about a GPU workload, for programs.

It is answered from what the pages watch, to whom the pages would show it, and names nothing of namespaces that the
caller may not see (ADR 65).
"""

import asyncio
import difflib
import json
from collections.abc import Sequence

from starlette.responses import Response

from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.queued import Queued
from kopt.dashboard.pages.page import PageRequest
from kopt.dashboard.pages.queue.data import QUEUE
from kopt.dashboard.problem import problem_document

PATH = "/v1/why/{namespace}/{kind}/{name}"
_LONGEST = 253
_NEAR, _MOST_COMPARED = 0.6, 5_000
_AGAIN = {"retry-after": "5"}


async def why(request: PageRequest) -> Response:
    """The document of ``kopt why -o json``; 404 names what is near, 503 says what is missing."""
    state = await request.latest(QUEUE)
    if not state.cluster:
        return problem_document(503, "No cluster", "These pages have no cluster: set KUBECONFIG, or run in a pod.")
    if not state.ready:
        return problem_document(503, "Not yet", "The cluster is being read; ask again.", _AGAIN)
    parts = request.request.path_params
    namespace, kind, name = parts["namespace"], parts["kind"], parts["name"]
    if max(map(len, (namespace, kind, name))) > _LONGEST:
        return problem_document(404, "No such workload", "No name in Kubernetes is longer than 253 characters.")
    matching = [queued for queued in state.queued if _is(queued, namespace, kind, name)]
    # Off the event loop: it takes milliseconds, and more where it was not asked before.
    explained = await asyncio.to_thread(state.explain, matching[:1]) if matching else {}
    if not explained:
        return problem_document(404, "No such workload", _unknown(state.queued, namespace, kind, name))
    document = next(iter(explained.values())).document
    return Response(
        json.dumps(document, ensure_ascii=False, allow_nan=False),
        media_type="application/json",
        headers={"cache-control": "private, no-store"},
    )


def _is(queued: Queued, namespace: str, kind: str, name: str) -> bool:
    """Whether the address names it: by what owns it, or by its Workload."""
    wanted = _singular(kind)
    if queued.namespace != namespace:
        return False
    is_workload = queued.system is System.KUEUE and wanted == "workload" and queued.workload == name
    return is_workload or (queued.name == name and _singular(queued.kind) == wanted)


def _singular(kind: str) -> str:
    """``job`` of ``Job``, ``jobs`` and ``jobs.batch``."""
    return kind.casefold().partition(".")[0].removesuffix("s")


def _unknown(queued: Sequence[Queued], namespace: str, kind: str, name: str) -> str:
    text = f"No GPU workload {kind}/{name} waits or runs in namespace {namespace}, or you may not list its pods"
    addresses = [f"{item.namespace}/{item.kind.lower()}/{item.name}" for item in queued[:_MOST_COMPARED]]
    near = difflib.get_close_matches(f"{namespace}/{_singular(kind)}/{name}", addresses, n=1, cutoff=_NEAR)
    return f"{text}; did you mean {near[0]}?" if near else f"{text}; `kopt queue` lists those that do."
