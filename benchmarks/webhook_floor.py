"""The floor of a webhook's cost: a server that allows everything without looking, behind our own conditions.

python -m benchmarks.webhook_floor CERTIFICATE KEY PORT
"""

import asyncio
import base64
import re
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

_UID = re.compile(rb'"request":\{"uid":"([^"]+)"')
_LABELS = b'{"kueue.x-k8s.io/queue-name":"rest","kaiwo.ai/queue-source":"default"}'
_LABEL = base64.b64encode(b'[{"op":"add","path":"/metadata/labels","value":%s}]' % _LABELS)
_PATCH = b',"patchType":"JSONPatch","patch":"%s"' % _LABEL
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_ANSWER = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"%s","allowed":true%s}}'
_KINDS = {"mutate": "MutatingWebhookConfiguration", "validate": "ValidatingWebhookConfiguration"}


@dataclass(frozen=True)
class Floor:
    """What a pod's creation costs in a namespace where only servers answer that do not look.

    ``ours``: both of our configurations whole; else one webhook for ``calls``, with the condition of ours. ``labels``:
    the answer to a pod without labels adds ours.
    """

    name: str
    ours: bool = False
    calls: tuple[str, ...] = ("mutate",)
    labels: bool = False


FLOORS = (
    Floor("floor: our configurations and labels, answered at once", ours=True, labels=True),
    Floor("floor: 1 call"),
    Floor("floor: 2 calls", calls=("mutate", "validate")),
)


class Allow(asyncio.Protocol):
    """HTTP/1.1 with kept connections, as far as the API server speaks it: one review after the other."""

    def connection_made(self, transport: Any) -> None:
        self._transport, self._got = transport, b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, separator, body = self._got.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not separator or length is None or len(body) < int(length[1]):
            return
        self._got = b""
        uid, patch = _UID.search(body), _PATCH if head.startswith(b"POST /patch") else b""
        answer = _ANSWER % (uid[1] if uid else b"", patch)
        self._transport.write(_HEAD % len(answer) + answer)


@dataclass(frozen=True)
class Running:
    """A floor's namespace and the process that answers there."""

    namespace: str
    pid: int


@contextmanager
def floors(webhooks: Any) -> Iterator[dict[Floor, Running]]:
    """A namespace and a server for each floor."""
    from controlplane.processes import free_port

    plane = webhooks.plane
    pair = plane.issue("floor", "floor")
    found: dict[Floor, Running] = {}
    servers = []
    for number, floor in enumerate(FLOORS):
        # A process each: one that all of them called would be answering with warm caches, as ours does not.
        port = free_port()
        command = [sys.executable, "-P", str(Path(__file__)), str(pair.certificate), str(pair.key), str(port)]
        servers.append(plane.start_server(f"webhook-floor-{number}", command))
        servers[-1].wait_until(partial(_listens, port))
        found[floor] = Running(webhooks.namespace(managed=False), servers[-1].pid)
        for call, hooks in _hooks(floor).items():
            path = "/patch" if floor.labels and call == "mutate" else "/"
            webhooks.api.apply(
                {
                    "apiVersion": "admissionregistration.k8s.io/v1",
                    "kind": _KINDS[call],
                    "metadata": {"name": f"floor-{number}"},
                    "webhooks": [
                        _moved(one, f"https://127.0.0.1:{port}{path}", plane.ca, found[floor].namespace)
                        for one in hooks
                    ],
                }
            )
    try:
        yield found
    finally:
        for number, floor in enumerate(FLOORS):
            for call in _hooks(floor):
                webhooks.api.delete("admissionregistration.k8s.io/v1", _KINDS[call], f"floor-{number}")
        for server in servers:
            server.kill()


def _hooks(floor: Floor) -> dict[str, list[Any]]:
    from kopt.cluster.admission.address import Address
    from kopt.controllers.admission.policy import ConformancePolicy
    from kopt.controllers.admission.registration import mutating_configuration, validating_configuration

    address = Address("kopt-system", url="https://none")
    mutating, validating = (
        one(address, ConformancePolicy())["webhooks"] for one in (mutating_configuration, validating_configuration)
    )
    if floor.ours:
        return {"mutate": mutating, "validate": validating}
    (queued,) = [one for one in mutating if one["name"].startswith("queued.mutate.pods.core.")]
    alone = {key: value for key, value in queued.items() if key not in ("reinvocationPolicy", "objectSelector")}
    return {call: [alone] for call in floor.calls}


def _moved(hook: Any, url: str, ca: Path, namespace: str) -> Any:
    """A webhook of ours that is answered by somebody else, in one namespace."""
    return hook | {
        "clientConfig": {"url": url, "caBundle": base64.b64encode(ca.read_bytes()).decode()},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "failurePolicy": "Fail",
        "timeoutSeconds": 10,
    }


def _listens(port: int) -> bool:
    socket.create_connection(("127.0.0.1", port), 1).close()
    return True


async def _serve(certificate: str, key: str, port: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.get_running_loop().create_server(Allow, "127.0.0.1", port, ssl=context)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
