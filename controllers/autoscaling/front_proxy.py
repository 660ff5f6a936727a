"""Who may call: the API server, which has authenticated and authorised whoever asks it, and shows a certificate.

https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import mapping, text

NAMESPACE, CONFIG_MAP = "kube-system", "extension-apiserver-authentication"


@dataclass(frozen=True)
class FrontProxy:
    """The CA of the API server's certificate (PEM), and the common names that it may have; none: any."""

    authority: bytes
    names: frozenset[str]

    def admits(self, transport: asyncio.Transport) -> bool:
        """Whether the caller's certificate, which is signed by ``authority``, has one of the names."""
        return not self.names or bool(self.names & common_names(transport.get_extra_info("peercert")))


def front_proxy_of(document: Object) -> FrontProxy | None:
    """As the API server publishes it; None where aggregation is not set up. Raises ValueError for what is no list."""
    data = mapping(document, "data")
    authority = text(data, "requestheader-client-ca-file")
    names = orjson.loads(text(data, "requestheader-allowed-names") or "[]")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("requestheader-allowed-names is no list of names")
    return FrontProxy(authority.encode(), frozenset(names)) if authority else None


def common_names(certificate: Any) -> set[str]:
    """Of a certificate as Python's ssl decodes it."""
    subject = (certificate or {}).get("subject", ())
    return {value for part in subject for key, value in part if key == "commonName"}
