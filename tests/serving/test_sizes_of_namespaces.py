"""Sizes that are told for a namespace: who may tell them and ask for them, and what the admission webhook sees."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kopt.cluster.client.auth_reviews import Caller
from kopt.cluster.client.errors import Unreachable
from kopt.cluster.workloads.pod_sizing import job_type_of, template_of
from kopt.cluster.workloads.workload import read_workload
from kopt.controllers.admission.sizes.cache import SizingCache
from kopt.core.settings import Settings
from kopt.core.units import GIB
from kopt.models.sizing.estimate import load_sizing
from kopt.models.sizing.trace_summary import summary
from kopt.serving.base.owners import owner_of
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.sizing.service import SizingService
from tests.serving.conftest import URL, MemorySource, no_store
from tests.serving.test_identity import bearer, binding
from tests.serving.test_sizing_endpoint import CODE, pod

IMAGE = pod("python", "train.py", "--secret", "sauce")
TRACE = summary(CODE)
SMALL = TRACE | {
    "allocated_bytes": 1 << 20,
    "reserved_bytes": 1 << 20,
    "breakdown": dict.fromkeys(TRACE["breakdown"], 0),
}


class Rbac:
    """Alice changes Jobs in ``blue``, Mallory in ``red``; the webhook reads all. ``down``: nobody can be asked."""

    down = False
    changes = frozenset({("alice", "blue"), ("mallory", "red"), ("controller", "blue"), ("controller", "red")})

    async def caller(self, token: str) -> Caller | None:
        return Caller(token)

    async def may(self, caller: Caller, verb: str, path: str) -> bool:
        return verb != "list" or caller.name == "operator"

    async def may_on_jobs(self, caller: Caller, verb: str, namespace: str) -> bool:
        if self.down:
            raise Unreachable("no route")
        changes = (caller.name, namespace) in self.changes
        return changes or (verb == "list" and caller.name == "webhook")


@pytest.fixture
def rbac() -> Rbac:
    return Rbac()


@pytest.fixture
def endpoint(source: MemorySource, tmp_path: Path, rbac: Rbac) -> Iterator[Endpoint]:
    parts = Parts(source, StoredFeatures(no_store), refresh_s=3600, reviewer=rbac)
    yield from started(assemble(Settings(home=tmp_path), parts))


def started(built: Endpoint) -> Iterator[Endpoint]:
    built.start()
    built.service(SizingService).slot.current = load_sizing("shipped")
    yield built
    built.stop()


@pytest.fixture
async def http(endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers={DEADLINE_HEADER: "30000"}) as client:
        yield client


async def post(http: httpx.AsyncClient, token: str, namespace: str | None, **more: Any) -> httpx.Response:
    body = {"workload": IMAGE, "namespace": namespace} | more
    return await http.post("/v1/sizing", json=body, headers=bearer(token))


async def peak(http: httpx.AsyncClient, token: str, namespace: str | None) -> int | None:
    reply = await post(http, token, namespace)
    assert reply.status_code == 200, reply.text
    found: int | None = reply.json()["memory"]["peak_bytes"]
    return found


async def test_what_is_told_for_a_namespace_counts_there_and_nowhere_else(http: httpx.AsyncClient) -> None:
    sent = (await post(http, "alice", "blue", trace=TRACE)).json()["memory"]["peak_bytes"]
    assert sent > 4 * GIB
    assert await peak(http, "webhook", "blue") == sent
    assert await peak(http, "webhook", "red") is None
    assert await peak(http, "webhook", None) is None
    assert await peak(http, "mallory", None) is None
    assert (await post(http, "alice", None, trace=TRACE)).status_code == 200
    assert await peak(http, "webhook", "red") is None, "what a caller tells for itself stays its own"


async def test_nobody_plants_a_size_where_they_may_not_change_jobs(http: httpx.AsyncClient) -> None:
    honest = (await post(http, "alice", "blue", trace=TRACE)).json()["memory"]["peak_bytes"]
    profile = {
        "schema": "kopt/v1",
        "peak_bytes": 1 << 20,
        "duration_s": 60.0,
        "samples": 60,
        "steady": True,
        "gpu": "A100-SXM4-80GB",
    }
    for evidence in ({"trace": SMALL}, {"profile": profile}):
        refused = await post(http, "mallory", "blue", **evidence)
        assert refused.status_code == 403
        assert "mallory may not tell what the jobs of namespace blue need" in refused.json()["detail"]
        assert (await post(http, "webhook", "blue", **evidence)).status_code == 403, "who only reads tells nothing"
        # Their own answers, and those of their own namespace, they may spoil.
        for own in ("red", None):
            assert (await post(http, "mallory", own, **evidence)).status_code == 200
    assert await peak(http, "webhook", "blue") == honest


async def test_nobody_asks_what_the_jobs_of_others_need(http: httpx.AsyncClient) -> None:
    await post(http, "alice", "blue", trace=TRACE)
    assert (await post(http, "mallory", "blue")).status_code == 403
    shown = (await http.get("/v1/recommendations", headers=bearer("mallory"))).json()["sizes"]
    assert shown == []
    assert len((await http.get("/v1/recommendations", headers=bearer("alice"))).json()["sizes"]) == 1


async def test_a_caller_that_is_called_like_a_namespace_is_still_a_caller(http: httpx.AsyncClient) -> None:
    names = ["blue", "/blue", "//blue", "/namespaces/blue", "//namespaces/blue", ""]
    assert len({owner_of(name) for name in names} | {owner_of("", "blue")}) == len(names) + 1
    await post(http, "alice", "blue", trace=TRACE)
    assert await peak(http, "/namespaces/blue", None) is None
    assert (await http.get("/v1/recommendations", headers=bearer("/namespaces/blue"))).json()["sizes"][0]["name"]
    await post(http, "/namespaces/blue", None, trace=SMALL)
    assert (await peak(http, "webhook", "blue") or 0) > 4 * GIB


async def test_an_api_server_that_does_not_answer_settles_nothing(http: httpx.AsyncClient, rbac: Rbac) -> None:
    rbac.down = True
    assert (await post(http, "alice", "blue", trace=TRACE)).status_code == 503
    assert (await post(http, "alice", None, trace=TRACE)).status_code == 200


@pytest.mark.parametrize("namespace", ["Blue", "a/b", "", "a" * 64, "-a", "..", 7])
async def test_a_namespace_is_a_name(http: httpx.AsyncClient, namespace: Any) -> None:
    assert (await post(http, "alice", namespace)).status_code == 422


async def needs(endpoint: Endpoint, token: str, namespace: str) -> int | None:
    """What the admission webhook, with this token, knows of a Job in the namespace."""
    job = {
        "metadata": {"name": "train", "namespace": namespace},
        "spec": {"template": {"metadata": {}, "spec": IMAGE["spec"]}},
    }
    workload = read_workload(job, "batch", "Job", namespace, "train")
    assert workload is not None
    (pods,) = workload.pod_sets
    job_type, template = job_type_of(workload, pods), template_of(workload, pods)
    assert job_type is not None
    assert template is not None
    transport = httpx.ASGITransport(create_app(endpoint, manage=False))
    async with AsyncPredictionClient(URL, transport=transport, token=lambda: token, deadline_s=30) as client:
        cache = SizingCache(client.sizing)
        found = await cache.need(job_type, template, 30)
        await cache.close()
    return None if found is None or found.prediction.value is None else int(found.prediction.value)


@pytest.mark.cluster
async def test_a_users_published_trace_reaches_the_webhook_in_a_real_cluster(
    control_plane: Any, source: MemorySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, rbac = control_plane.api, "rbac.authorization.k8s.io/v1"
    home = api.space("sizes-home")
    for name in ("webhook", "endpoint"):
        api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": home}})
    roles = {
        "asks": [{"nonResourceURLs": ["/v1/*"], "verbs": ["get", "post"]}],
        "reads": [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list"]}],
    }
    api.apply(
        *(
            {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": f"sizes-{name}"}, "rules": rules}
            for name, rules in roles.items()
        )
    )
    api.apply(binding(home, "endpoint", "system:auth-delegator"), binding(home, "webhook", "sizes-reads"))
    users = {}
    for name in ("sizes-blue", "sizes-red"):
        users[name] = api.namespace(name)
        api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "user", "namespace": name}})
        # The role that clusters give the people of a namespace.
        edit = binding(name, "user", "edit") | {"kind": "RoleBinding"}
        edit["metadata"] = {"name": "user", "namespace": name}
        api.apply(edit, binding(name, "user", "sizes-asks"))
    asks = binding(home, "webhook", "sizes-asks")
    asks["metadata"]["name"] = "sizes-webhook-asks"
    api.apply(asks)
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig_for("endpoint", home)))
    settings = Settings(home=tmp_path, auth="token", auth_audiences="predictions")
    built = assemble(settings, Parts(source, StoredFeatures(no_store), 3600))
    for endpoint in started(built):
        transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
        headers = {DEADLINE_HEADER: "30000"}
        async with httpx.AsyncClient(transport=transport, base_url=URL, headers=headers) as http:
            tokens = {name: api.token("user", name, audiences=["predictions"]) for name in users}
            honest = (await post(http, tokens["sizes-blue"], "sizes-blue", trace=TRACE)).json()["memory"]["peak_bytes"]
            planted = await post(http, tokens["sizes-red"], "sizes-blue", trace=SMALL)
            assert planted.status_code == 403, planted.text
            assert (await post(http, tokens["sizes-red"], "sizes-red", trace=SMALL)).status_code == 200
        webhook = api.token("webhook", home, audiences=["predictions"])
        assert await needs(endpoint, webhook, "sizes-blue") == honest
        assert (await needs(endpoint, webhook, "sizes-red") or 0) < honest
