"""Reviews over HTTPS of what comes to a queue: a fault of ours lets it through, and whoever submits it is told."""

import json
import ssl
import time
from pathlib import Path

import aiohttp
from admission.workloads import review

from kopt.cluster.admission.address import Address
from kopt.cluster.client.api import Kube
from kopt.cluster.client.credentials import KubeconfigAccess
from kopt.cluster.runtime.http.certificates import make_pair
from kopt.cluster.workloads.kueue.objects import KueueWorkload
from kopt.controllers.preemption.workload_hold import PATH, Holding, HoldSettings, Workloads

WORKLOAD = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": {"name": "w"}, "spec": {}}


def _breaks(_workload: KueueWorkload, _now_s: float) -> bool:
    raise RuntimeError("postgres://admin:secret@db")


async def test_a_fault_of_ours_lets_a_workload_through_and_its_owner_is_told(tmp_path: Path) -> None:
    pair = make_pair(["127.0.0.1"], time.time(), 3600)
    chain = tmp_path / "tls.pem"
    chain.write_bytes(pair.certificate + pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(chain)
    settings = HoldSettings(Address("kopt-system", "kopt-preemption"), ("127.0.0.1",), port=0)
    holding = Holding(Kube(KubeconfigAccess("/nonexistent")), settings, [Workloads(_breaks)], lambda: True)
    port = await holding._http.start("127.0.0.1", 0, tls)
    trusted = ssl.create_default_context(cadata=pair.authority.decode())
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"https://127.0.0.1:{port}{PATH}", data=json.dumps(review(WORKLOAD)), ssl=trusted) as reply,
    ):
        answer = (await reply.json())["response"]
    await holding.stop()
    assert answer["allowed"]
    assert "patch" not in answer
    (warning,) = answer["warnings"]
    assert "let this object through as it is: it does not wait until there is room for it" in warning
    assert "kopt-preemption" in warning
    assert "secret" not in warning
