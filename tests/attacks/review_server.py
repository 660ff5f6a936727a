"""A review server in a process of its own, as its command starts it: on uvloop, over TLS, without a cluster.

python -P review_server.py webhook|preemption CHAIN.pem CONNECTIONS

REQUEST_S in the environment shortens what a request may take, CLIENT_CA names a file with the CA of callers. Prints
the port of reviews and, for the webhook, that of probes (0 otherwise). The process ends with its standard input.
"""

import asyncio
import dataclasses
import os
import ssl
import sys
from pathlib import Path
from typing import Any

import uvloop

from kopt.cluster.admission.address import Address
from kopt.cluster.client.api import Kube
from kopt.cluster.client.client_authority import ClientAuthority
from kopt.cluster.client.credentials import KubeconfigAccess
from kopt.cluster.runtime.http.certificates import ServingCertificate
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.metrics import WebhookMetrics
from kopt.controllers.admission.policy import parse_policy
from kopt.controllers.admission.server import ServerSettings, WebhookServer
from kopt.controllers.preemption.workload_hold import Holding, HoldSettings, Workloads

ENFORCE = parse_policy({"metadata": {"name": "default"}, "spec": {"mode": "enforce"}})


def _limited(http: Any, connections: int) -> None:
    """Fewer connections than in a cluster: each takes a descriptor here and one in the attacker."""
    limits = dataclasses.replace(http.limits, connections=connections).within(float(os.environ.get("REQUEST_S", "10")))
    http.__init__(http.handle, http.body_limit, limits=limits)


async def _webhook(tls: ssl.SSLContext, connections: int) -> tuple[Any, int]:
    settings = ServerSettings(port=0, probe_port=0)
    served = WebhookServer(Admissions(FixedState(ENFORCE)), tls, settings, WebhookMetrics())
    _limited(served._reviews, connections)
    await served.start_probes()
    await served.start()
    return served, served.probe_port


async def _preemption(tls: ssl.SSLContext, connections: int) -> tuple[Any, int]:
    hold = HoldSettings(Address("kopt-system", "kopt-preemption"), ("127.0.0.1",), port=0)
    kube = Kube(KubeconfigAccess("/nonexistent"))
    served = Holding(kube, hold, [Workloads(lambda _, __: False)], lambda: True)
    _limited(served._http, connections)
    served.port = await served._http.start("127.0.0.1", 0, tls)
    return served, 0


def _certificate(chain: str) -> ServingCertificate:
    """As a replica has it that has read the Secret."""
    file = os.environ.get("CLIENT_CA")
    more: dict[str, Any] = {"callers": ClientAuthority(Path(file))} if file else {}
    found = ServingCertificate(Kube(KubeconfigAccess("/nonexistent")), "kopt-system", "tls", ["127.0.0.1"], **more)
    pair = Path(chain).read_bytes()
    assert found._load({"tls.crt": pair, "tls.key": pair})
    return found


async def _main(kind: str, chain: str, connections: str) -> None:
    certificate = _certificate(chain)
    start = {"webhook": _webhook, "preemption": _preemption}[kind]
    server, probe_port = await start(certificate.context, int(connections))
    following = None
    if certificate._callers is not None:
        certificate.callers_replaced = server.end_connections
        following = asyncio.create_task(certificate._callers.run(certificate._follow_callers, reread_s=0.1))
    sys.stdout.write(f"{server.port} {probe_port}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    assert following is None or not following.done()


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
