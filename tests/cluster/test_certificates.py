"""Certificates that the API server trusts without a gap while they are rotated under its requests."""

import asyncio
import base64
import contextlib
import ssl
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cluster.faults import proxied
from controlplane.plane import ControlPlane
from controlplane.processes import PATIENCE_S, free_port
from cryptography import x509

from kopt.cluster.client.api import ApiError, Kube, Patch, WatchEvent, connect
from kopt.cluster.client.credentials import find_access
from kopt.cluster.client.resources import CONFIG_MAPS, MUTATING_WEBHOOKS, NAMESPACES, SECRETS, Resource
from kopt.cluster.runtime.http.certificates import CertificateSettings, ServingCertificate, expiry_s, make_pair

pytestmark = pytest.mark.cluster
OFTEN = CertificateSettings(lifetime_s=8, renew_before_s=6.5, overlap_s=1)


@contextlib.asynccontextmanager
async def running(certificate: ServingCertificate) -> AsyncIterator[None]:
    task = asyncio.create_task(certificate.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await certificate.ready.wait()
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def admit(request: web.Request) -> web.Response:
    uid = (await request.json())["request"]["uid"]
    response = {"uid": uid, "allowed": True}
    answer = web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    answer.force_close()
    return answer


@contextlib.asynccontextmanager
async def serving(context: ssl.SSLContext, port: int) -> AsyncIterator[None]:
    """A webhook that ends each connection with its answer, so that the API server shakes hands again and again."""
    app = web.Application()
    app.router.add_post("/", admit)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def shake_hands(kube: Kube, webhook: str, port: int) -> str:
    """A new connection that trusts what the webhook configuration says now; the serial number that was served."""
    found = await kube.get(MUTATING_WEBHOOKS, webhook)
    bundle = base64.b64decode(found["webhooks"][0]["clientConfig"]["caBundle"]).decode()
    trust = ssl.create_default_context(cadata=bundle)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname="127.0.0.1")
    served = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return str(served)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
async def webhook(kube: Kube, namespace: str, port: int) -> AsyncIterator[str]:
    """A configuration that refuses config maps in the namespace unless our webhook answers over trusted TLS."""
    name = f"certificates-{uuid.uuid4().hex[:8]}.kaiwo.ai"
    await kube.patch(NAMESPACES, namespace, {"metadata": {"labels": {"hooked": name}}})
    hook = {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
        "timeoutSeconds": 5,
        "namespaceSelector": {"matchLabels": {"hooked": name}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
    }
    await kube.create(MUTATING_WEBHOOKS, {"metadata": {"name": name}, "webhooks": [hook]})
    yield name
    await kube.delete(MUTATING_WEBHOOKS, name)


async def create_one(kube: Kube, namespace: str) -> None:
    await kube.create(CONFIG_MAPS, {"metadata": {"generateName": "c-", "namespace": namespace}}, dry_run=True)


@pytest.mark.slow
async def test_rotations_under_requests_of_the_real_api_server(
    kube: Kube, namespace: str, webhook: str, port: int
) -> None:
    hooks = [(MUTATING_WEBHOOKS, webhook)]
    first = ServingCertificate(kube, namespace, "tls", ["127.0.0.1"], hooks, OFTEN)
    second = ServingCertificate(kube, namespace, "tls", ["127.0.0.1"], hooks, OFTEN)
    async with running(first), running(second), serving(first.context, port):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(ApiError):
                    await create_one(kube, namespace)
                    break
                await asyncio.sleep(0.1)
        serials, ends_s = [], asyncio.get_running_loop().time() + 12
        while asyncio.get_running_loop().time() < ends_s or len(serials) <= 100 or first.rotations < 3:
            await create_one(kube, namespace)
            serials.append(await shake_hands(kube, webhook, port))
        # On a busy machine two rotations may lie between two handshakes.
        assert 4 <= len(set(serials)) <= first.rotations + 1
        # One of them may hear of a rotation a moment after the other.
        async with asyncio.timeout(PATIENCE_S):
            while second.rotations != first.rotations:
                await asyncio.sleep(0.01)


@pytest.mark.long
async def test_two_replicas_that_start_together_agree(kube: Kube, namespace: str) -> None:
    replicas = [ServingCertificate(kube, namespace, "tls", ["webhook.example"]) for _ in range(4)]
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(running(replica)) for replica in replicas))
        secret = await kube.get(SECRETS, "tls", namespace)
        served = expiry_s(base64.b64decode(secret["data"]["tls.crt"]))
        assert {replica.expires_s for replica in replicas} == {served}
    assert not any("ca.key" in name for name in secret["data"])


class SilentWatches(Kube):
    """Watches of this kind are accepted and bring nothing, as over a connection that a router has forgotten."""

    silent: Resource

    async def watch(self, resource: Resource, namespace: str = "", **options: Any) -> AsyncGenerator[WatchEvent]:
        if resource != self.silent:
            async with contextlib.aclosing(super().watch(resource, namespace, **options)) as events:
                async for event in events:
                    yield event
        options["opened"]()
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def silenced(kubeconfig: Path, resource: Resource) -> AsyncIterator[Kube]:
    kube = SilentWatches(find_access(kubeconfig, {}))
    kube.silent = resource
    try:
        yield kube
    finally:
        await kube.close()


@pytest.mark.long
@pytest.mark.parametrize("broken", [False, True])
async def test_replicas_serve_the_one_secret_though_their_watches_bring_nothing(
    control_plane: ControlPlane, kube: Kube, namespace: str, broken: bool
) -> None:
    if broken:
        await kube.create(SECRETS, {"metadata": {"name": "tls", "namespace": namespace}})
    async with contextlib.AsyncExitStack() as stack:
        blind = await stack.enter_async_context(silenced(control_plane.kubeconfig, SECRETS))
        replicas = [ServingCertificate(blind, namespace, "tls", ["webhook.example"]) for _ in range(5)]
        await asyncio.gather(*(stack.enter_async_context(running(replica)) for replica in replicas))
        await assert_all_serve(kube, namespace, replicas)


@pytest.mark.long
async def test_replicas_start_at_once_on_a_slow_api_server(
    control_plane: ControlPlane, kube: Kube, namespace: str, webhook: str, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        proxy, through = await stack.enter_async_context(proxied(control_plane.kubeconfig, tmp_path))
        proxy.delay_s = 0.2
        clients = [await stack.enter_async_context(connect(through)) for _ in range(5)]
        hooks = [(MUTATING_WEBHOOKS, webhook)]
        replicas = [ServingCertificate(client, namespace, "tls", ["webhook.example"], hooks) for client in clients]
        await asyncio.gather(*(stack.enter_async_context(running(replica)) for replica in replicas))
        await assert_all_serve(kube, namespace, replicas)


async def test_a_replica_serves_though_the_configurations_cannot_be_listed(
    control_plane: ControlPlane, kube: Kube, namespace: str
) -> None:
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "list", "watch", "update"]}]
    control_plane.api.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "server", "namespace": namespace}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "rules": rules,
            "metadata": {"name": "server", "namespace": namespace},
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "server", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "server"},
            "subjects": [{"kind": "ServiceAccount", "name": "server", "namespace": namespace}],
        },
    )
    async with connect(control_plane.kubeconfig_for("server", namespace)) as limited:
        certificate = ServingCertificate(limited, namespace, "tls", ["webhook.example"], [(MUTATING_WEBHOOKS, "any")])
        async with running(certificate):
            assert certificate.expires_s > 0


async def assert_all_serve(kube: Kube, namespace: str, replicas: list[ServingCertificate]) -> None:
    """With the pair of the Secret; within what they may take to replace a pair of their own."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            secret = await kube.get(SECRETS, "tls", namespace)
            served = expiry_s(base64.b64decode(secret["data"]["tls.crt"]))
            if {replica.expires_s for replica in replicas} == {served}:
                return
            await asyncio.sleep(0.1)


async def test_cert_managers_secret_is_used_and_never_written(kube: Kube, namespace: str, webhook: str) -> None:
    pair = make_pair(["127.0.0.1"], time.time(), 3600)
    data = {"ca.crt": pair.authority, "tls.crt": pair.certificate, "tls.key": pair.key}
    body: dict[str, Any] = {
        "metadata": {"name": "tls", "namespace": namespace, "annotations": {"cert-manager.io/certificate-name": "c"}},
        "type": "kubernetes.io/tls",
        "data": {k: base64.b64encode(v).decode() for k, v in data.items()},
    }
    made = await kube.create(SECRETS, body)
    certificate = ServingCertificate(kube, namespace, "tls", ["other.name"], [(MUTATING_WEBHOOKS, webhook)])
    async with running(certificate), asyncio.timeout(PATIENCE_S):
        while True:
            found = await kube.get(MUTATING_WEBHOOKS, webhook)
            if found["webhooks"][0]["clientConfig"].get("caBundle"):
                break
            await asyncio.sleep(0.05)
    assert base64.b64decode(found["webhooks"][0]["clientConfig"]["caBundle"]) == pair.authority
    assert (await kube.get(SECRETS, "tls", namespace))["metadata"] == made["metadata"]


async def test_a_bundle_that_somebody_overwrites_is_put_back(
    kube: Kube, namespace: str, webhook: str, port: int
) -> None:
    certificate = ServingCertificate(kube, namespace, "tls", ["127.0.0.1"], [(MUTATING_WEBHOOKS, webhook)])
    async with running(certificate), serving(certificate.context, port), asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            while not (await kube.get(MUTATING_WEBHOOKS, webhook))["webhooks"][0]["clientConfig"].get("caBundle"):
                await asyncio.sleep(0.05)
            changes = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
            await kube.patch(MUTATING_WEBHOOKS, webhook, changes, kind=Patch.JSON)


@pytest.mark.parametrize("data", [{}, {"tls.crt": b"rubbish", "tls.key": b"", "ca.crt": b"\xff"}])
async def test_a_secret_that_cannot_be_used_is_replaced(kube: Kube, namespace: str, data: dict[str, bytes]) -> None:
    encoded = {name: base64.b64encode(content).decode() for name, content in data.items()}
    await kube.create(SECRETS, {"metadata": {"name": "tls", "namespace": namespace}, "data": encoded})
    certificate = ServingCertificate(kube, namespace, "tls", ["127.0.0.1"])
    async with running(certificate):
        assert certificate.expires_s > 0


async def test_a_new_name_is_added_without_dropping_the_old(kube: Kube, namespace: str) -> None:
    settings = CertificateSettings(lifetime_s=60, renew_before_s=30, overlap_s=0)
    async with running(ServingCertificate(kube, namespace, "tls", ["old.example"], settings=settings)):
        pass
    renewed = ServingCertificate(kube, namespace, "tls", ["new.example"], settings=settings)
    async with running(renewed), asyncio.timeout(PATIENCE_S):
        while not renewed.rotations:
            await asyncio.sleep(0.05)
        secret = await kube.get(SECRETS, "tls", namespace)
    served = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"old.example", "new.example"}
