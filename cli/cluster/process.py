"""What every process in a cluster does around its work: log lines, and its chain of the audit log."""

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused

if TYPE_CHECKING:
    from kopt.cluster.runtime.audit import Send
    from kopt.serving.client.audit import AuditSender

AUDIT_URL = "KOPT_AUDIT_URL"


@contextlib.contextmanager
def recorded(component: str) -> Iterator[None]:
    """Logs go to standard error, and with them what the component does; ``KOPT_AUDIT_URL`` names the prediction
    endpoint that keeps it as well."""
    from kopt.cluster.runtime.audit import RecordLines, start_audit, stop_audit
    from kopt.cluster.runtime.json_logs import log_to_stderr

    log_to_stderr()
    identity = os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        sinks: list[Send] = [RecordLines()]
        if url := os.environ.get(AUDIT_URL, ""):
            sinks.append(stack.enter_context(contextlib.closing(_sender(url))))
        handler = start_audit(component, identity, *sinks)
        stack.callback(stop_audit, handler)
        yield


def _sender(url: str) -> "AuditSender":
    import httpx

    from kopt.serving.client.audit import AuditSender

    try:
        return AuditSender(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise Refused(f"{AUDIT_URL}={url} is no address of a prediction endpoint: {error}") from error
