"""Authentication of the endpoint's callers, in process and against a real API server."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kopt.cluster.client.auth_reviews import Caller
from kopt.cluster.client.errors import Unreachable
from kopt.core.settings import Settings, SettingsError
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.demand.service import DemandService
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.http.auth import OPEN
from tests.serving.conftest import URL, MemorySource, history, no_store


class KnownTokens:
    """Accepts tokens it knows; ``down`` is an API server that does not answer."""

    down = False

    async def caller(self, token: str) -> Caller | None:
        if self.down:
            raise Unreachable("no route")
        callers = {"a": Caller("alice"), "b": Caller("bob"), "g": Caller("guest"), "o": Caller("operator")}
        return callers.get(token)

    async def may(self, caller: Caller, verb: str, path: str) -> bool:
        return caller.name == "operator" if verb == "list" else caller.name != "guest"

    async def may_on_jobs(self, caller: Caller, verb: str, namespace: str) -> bool:
        return False


@pytest.fixture
def tokens() -> KnownTokens:
    return KnownTokens()


@pytest.fixture
def guarded(source: MemorySource, tmp_path: Path, tokens: KnownTokens) -> Iterator[Endpoint]:
    parts = Parts(source=source, features=StoredFeatures(no_store), refresh_s=3600, reviewer=tokens)
    built = assemble(Settings(home=tmp_path), parts)
    built.start()
    yield built
    built.stop()


@pytest.fixture
async def caller(guarded: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(guarded, manage=False), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def demand(client: httpx.AsyncClient, token: str, **more: Any) -> httpx.Response:
    body = {"series": [history(gpus=4, **more)], "capacity_per_gpu": 10}
    return await client.post("/v1/demand", json=body, headers=bearer(token))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Basic YTpi"},
        {"authorization": "Bearer"},
        bearer("wrong"),
        bearer("a b"),
        {"authorization": "a"},
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/recommendations", "/v2", "/v2/models/demand", "/v1/none", "//v1/models"]
)
async def test_without_a_valid_token_nothing_is_told(
    caller: httpx.AsyncClient, headers: dict[str, str], path: str
) -> None:
    answer = await caller.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "token" in answer.json()["detail"].lower()


async def test_probes_and_metrics_stay_open(caller: httpx.AsyncClient) -> None:
    assert {path: (await caller.get(path)).status_code for path in OPEN} == dict.fromkeys(OPEN, 200)


async def test_a_caller_without_the_right_is_told_what_to_bind(caller: httpx.AsyncClient) -> None:
    answer = await demand(caller, "g")
    assert answer.status_code == 403
    assert "guest may not post /v1/demand" in answer.json()["detail"]


async def test_an_api_server_that_does_not_answer_lets_nobody_in(
    caller: httpx.AsyncClient, tokens: KnownTokens
) -> None:
    tokens.down = True
    answer = await demand(caller, "a")
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert (await caller.get("/readyz")).status_code == 200


async def test_callers_see_their_own_advice_only(caller: httpx.AsyncClient, guarded: Endpoint) -> None:
    assert (await demand(caller, "a")).status_code == 200
    assert guarded.service(DemandService).observer is not None
    guarded.service(DemandService).observer.stop()
    mine = (await caller.get("/v1/recommendations", headers=bearer("a"))).json()["recommendations"]
    others = (await caller.get("/v1/recommendations", headers=bearer("b"))).json()["recommendations"]
    alls = (await caller.get("/v1/recommendations", headers=bearer("o"))).json()["recommendations"]
    assert [advice["pool"] for advice in mine] == ["chat"]
    assert others == []
    assert alls == mine


def test_the_setting_is_none_or_token(tmp_path: Path) -> None:
    assert Settings.parse({}, home=tmp_path).auth == "none"
    assert Settings.parse({"KOPT_AUTH": "token"}, home=tmp_path).auth == "token"
    with pytest.raises(SettingsError, match="none or token"):
        Settings.parse({"KOPT_AUTH": "yes"}, home=tmp_path)


@pytest.mark.cluster
async def test_tokens_of_a_real_cluster(
    control_plane: Any, source: MemorySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = control_plane.api
    namespace = api.space("callers")
    core, rbac = "v1", "rbac.authorization.k8s.io/v1"
    for name in ("friend", "colleague", "boss", "stranger", "endpoint"):
        api.apply({"apiVersion": core, "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}})
    verbs = {"client": ["get", "post"], "operator": ["get", "list"]}
    roles = [
        {
            "apiVersion": rbac,
            "kind": "ClusterRole",
            "metadata": {"name": f"{namespace}-{name}"},
            "rules": [{"nonResourceURLs": ["/v1/*", "/v2/*"], "verbs": allowed}],
        }
        for name, allowed in verbs.items()
    ]
    bound = {
        "friend": f"{namespace}-client",
        "colleague": f"{namespace}-client",
        "boss": f"{namespace}-operator",
        "endpoint": "system:auth-delegator",
    }
    api.apply(*roles, *(binding(namespace, *pair) for pair in bound.items()))
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig_for("endpoint", namespace)))
    built = assemble(
        Settings(home=tmp_path, auth="token", auth_audiences="predictions"),
        Parts(source, StoredFeatures(no_store), 3600),
    )
    built.start()
    transport = httpx.ASGITransport(create_app(built, manage=False), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
        friend = api.token("friend", namespace, audiences=["predictions"])
        assert (await demand(client, friend)).status_code == 200
        assert (await demand(client, api.token("stranger", namespace, audiences=["predictions"]))).status_code == 403
        assert (await demand(client, api.token("friend", namespace))).status_code == 401
        assert (await demand(client, friend[:-4] + "AAAA")).status_code == 401
        assert built.service(DemandService).observer is not None
        built.service(DemandService).observer.stop()
        assert built.service(DemandService).table is not None
        assert len(built.service(DemandService).table.advice(f"system:serviceaccount:{namespace}:friend", 0.0)) == 1
        assert built.service(DemandService).table.advice("", 0.0) == []
        tokens = {
            name: api.token(name, namespace, audiences=["predictions"]) for name in ("friend", "colleague", "boss")
        }
        seen = {name: await pools(transport, token) for name, token in tokens.items()}
        assert seen == {"friend": ["chat"], "colleague": [], "boss": ["chat"]}
    built.stop()


async def pools(transport: httpx.ASGITransport, token: str) -> list[str]:
    """What our own client is told with a token."""
    async with AsyncPredictionClient(URL, transport=transport, token=lambda: token, deadline_s=10) as client:
        return [one.pool for one in await client.recommendations()]


def binding(namespace: str, account: str, role: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{namespace}-{account}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
