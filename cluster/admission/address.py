"""Where the API server finds our webhooks, and what holds for all of them."""

from dataclasses import dataclass

from kopt.cluster.client.resources import Object

TIMEOUT_S = 1


@dataclass(frozen=True)
class Address:
    """Where the API server finds the webhooks: a Service of ``namespace``, or ``url`` (https) outside a cluster."""

    namespace: str
    service: str = "kopt-webhook"
    port: int = 443
    url: str = ""

    def client_config(self, path: str) -> Object:
        if self.url:
            return {"url": self.url.rstrip("/") + path}
        return {"service": {"namespace": self.namespace, "name": self.service, "port": self.port, "path": path}}
