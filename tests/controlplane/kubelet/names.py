"""The cluster's name server, as far as pods of the tests need one: addresses of Services, from their EndpointSlices."""

import contextlib
import socket
import struct
import threading

import httpx
from controlplane.api import Api, Refused

DOMAIN = "cluster.local"
_A, _IN = 1, 1
_UNKNOWN = 3
_TTL_S = 1


class NameServer:
    """Answers on UDP port 53 of an address, until it is closed."""

    def __init__(self, address: str, api: Api) -> None:
        self._api = api
        #: Addresses by ``NAME.NAMESPACE.svc`` of what is no Service of the cluster.
        self.fixed: dict[str, str] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        threading.Thread(target=self._serve, name="names", daemon=True).start()

    def close(self) -> None:
        """Ends it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def addresses(self, name: str) -> list[str] | None:
        """Of the pods of ``NAME.NAMESPACE.svc``, with or without the domain; None where there is no such Service."""
        short = name.lower().rstrip(".").removesuffix(f".{DOMAIN}")
        if short in self.fixed:
            return [self.fixed[short]]
        service, _, rest = short.partition(".")
        namespace, _, kind = rest.partition(".")
        if kind != "svc" or self._api.find("v1", "Service", service, namespace) is None:
            return None
        label = f"kubernetes.io/service-name={service}"
        slices = self._api.list("discovery.k8s.io/v1", "EndpointSlice", namespace, label)
        endpoints = [endpoint for part in slices for endpoint in part.get("endpoints") or ()]
        ready = [endpoint for endpoint in endpoints if endpoint.get("conditions", {}).get("ready", True)]
        return sorted({address for endpoint in ready for address in endpoint["addresses"]})

    def _serve(self) -> None:
        while True:
            try:
                question, client = self._socket.recvfrom(4096)
            except OSError:
                return
            threading.Thread(target=self._answer, args=(question, client), daemon=True).start()

    def _answer(self, question: bytes, client: tuple[str, int]) -> None:
        # An API server that is away, or a question like no resolver's, gets no answer; resolvers ask again.
        with contextlib.suppress(OSError, Refused, httpx.HTTPError, IndexError, UnicodeDecodeError, struct.error):
            self._socket.sendto(self._reply(question), client)

    def _reply(self, question: bytes) -> bytes:
        name, end = _name(question)
        kind, _ = struct.unpack_from("!HH", question, end)
        addresses = self.addresses(name)
        answers = (addresses or []) if kind == _A else []
        code = _UNKNOWN if addresses is None else 0
        # Authoritative, recursion is said to be there; the question as it came.
        head = question[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(answers), 0, 0)
        # Each answer refers to the name of the question, which follows the head.
        records = [struct.pack("!HHHIH", 0xC00C, _A, _IN, _TTL_S, 4) + socket.inet_aton(address) for address in answers]
        return head + question[12 : end + 4] + b"".join(records)


def _name(question: bytes) -> tuple[str, int]:
    """The name in a question, and where it ends."""
    labels, at = [], 12
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1
