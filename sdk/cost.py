"""``kopt.cost()``: what GPUs cost and who used them, as pages that read the meter's database say it to you.

    import kopt
    report = kopt.cost("https://gpus.example", by="team", since="7d", token=token)
    report.micro, report.rows[0].name           # a table in a notebook
    kopt.run_cost("research/jobs/finetune", "https://gpus.example", token=token).whole.micro

``kopt cost --server`` prints the same. Whoever may list the pods of a namespace sees its costs.
"""

from typing import Any

import httpx

from kopt.core.settings import Settings
from kopt.core.untrusted import UnreadableError, decode_mapping
from kopt.policies.cost.documents import events_of, report_of, run_of
from kopt.policies.cost.report import MOST_ROWS, CostEvent, CostReport
from kopt.policies.cost.run import RunCost

_DEADLINE_S = 30.0
_LONGEST_BYTES = 16 << 20
_LONGEST_TOKEN = 16_384


class CostError(RuntimeError):
    """There is no report; the message says why, and never holds the token."""


def cost(
    server: str = "",
    *,
    by: str = "namespace",
    label: str = "",
    since: str = "30d",
    namespace: str = "",
    limit: int = MOST_ROWS,
    offset: int = 0,
    token: str = "",
    settings: Settings | None = None,
    transport: httpx.BaseTransport | None = None,
) -> CostReport:
    """Rows ``offset`` to ``offset + limit`` by namespace, queue, team, workload, pod, node, model, or by ``label``.

    ``server`` is the address of the pages, by default those of ``kopt up`` on this machine; ``token`` one that their
    login accepts. Raises CostError.
    """
    address = (server or f"http://127.0.0.1:{(settings or Settings).pages_port}").rstrip("/")
    parameters = {"by": by, "label": label, "since": since, "namespace": namespace, "limit": limit, "offset": offset}
    query = {name: str(value) for name, value in parameters.items() if value != ""}
    document = _fetched(f"{address}/v1/cost", query, _headers(token), transport)
    try:
        return report_of(document)
    except ValueError as error:
        raise CostError(f"{address}: {error}") from error


def cost_events(
    row: str,
    server: str = "",
    *,
    by: str = "namespace",
    label: str = "",
    since: str = "30d",
    token: str = "",
    settings: Settings | None = None,
    transport: httpx.BaseTransport | None = None,
) -> tuple[list[CostEvent], int]:
    """The events behind one row of ``cost``, in the order of time, and how many there are in all: the pages list the
    first 10,000. Raises CostError."""
    address = (server or f"http://127.0.0.1:{(settings or Settings).pages_port}").rstrip("/")
    query = {"row": row, "by": by, "since": since} | ({"label": label} if label else {})
    document = _fetched(f"{address}/v1/cost/events", query, _headers(token), transport)
    try:
        return events_of(document)
    except ValueError as error:
        raise CostError(f"{address}: {error}") from error


def run_cost(
    name: str,
    server: str = "",
    *,
    since: str = "30d",
    run: str = "",
    token: str = "",
    settings: Settings | None = None,
    transport: httpx.BaseTransport | None = None,
) -> RunCost:
    """What one training cost by epoch and by 1,000 steps, and how many samples or tokens one unit of money bought.

    ``name`` is as ``cost(by="workload")`` has it (``research/jobs/finetune``), or its end. Epochs are those that the
    endpoint has read in the lines that the log agent sent. Of several runs of this name it is the latest, or the one
    whose UID begins with ``run``. Raises CostError.
    """
    address = (server or f"http://127.0.0.1:{(settings or Settings).pages_port}").rstrip("/")
    document = _fetched(f"{address}/v1/cost/run", {"row": name, "since": since, "run": run}, _headers(token), transport)
    try:
        return run_of(document)
    except ValueError as error:
        raise CostError(f"{address}: {error}") from error


def _headers(token: str) -> dict[str, str]:
    token = token.strip()
    # Line breaks in a token could end the header and inject another one.
    if len(token) > _LONGEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise CostError("this is no bearer token")
    return {"authorization": f"Bearer {token}"} if token else {}


def _fetched(
    address: str, query: dict[str, str], headers: dict[str, str], transport: httpx.BaseTransport | None
) -> dict[str, Any]:
    """The document. A redirect is not followed: the token is for this address alone."""
    try:
        with (
            httpx.Client(timeout=_DEADLINE_S, transport=transport) as client,
            client.stream("GET", address, params=query, headers=headers) as reply,
        ):
            body = b""
            for part in reply.iter_bytes():
                body += part
                if len(body) > _LONGEST_BYTES:
                    raise CostError(f"{address} answers with more than {_LONGEST_BYTES >> 20} MiB")
            status = reply.status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CostError(f"{address} gives no answer: {type(error).__name__}") from error
    try:
        document = decode_mapping(body.decode("utf-8", "replace"), longest_chars=_LONGEST_BYTES)
    except UnreadableError as error:
        raise CostError(f"{address} answers {status}, and not as pages do: {error}") from error
    if status != 200:
        raise CostError(f"{address} answers {status}: {str(document.get('detail', ''))[:300]}")
    return document
