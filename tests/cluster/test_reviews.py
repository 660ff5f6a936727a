"""Tokens and rights as a real API server judges them, and how seldom it is asked."""

import asyncio
from typing import Any

import pytest

from kopt.cluster.client.api import Forbidden, Kube, Unreachable, connect
from kopt.cluster.client.auth_reviews import Caller, ReviewSettings, TokenReviewer
from kopt.cluster.client.resources import SERVICE_ACCOUNTS, Object

pytestmark = pytest.mark.cluster


class CountingKube(Kube):
    """Counts what reaches the API server; ``down`` is one that does not answer."""

    asked = 0
    down = False

    async def request(self, method: str, path: str, **options: Any) -> Object:
        self.asked += 1
        if self.down:
            raise Unreachable("no route")
        return await super().request(method, path, **options)


@pytest.fixture
async def counting(kube: Kube) -> CountingKube:
    return CountingKube(kube._access)


@pytest.fixture
async def token(control_plane: Any, kube: Kube, namespace: str) -> str:
    await kube.create(SERVICE_ACCOUNTS, {"metadata": {"name": "caller", "namespace": namespace}})
    found: str = control_plane.api.token("caller", namespace)
    return found


async def test_a_token_names_its_owner(counting: CountingKube, token: str, namespace: str) -> None:
    caller = await TokenReviewer(counting).caller(token)
    assert caller is not None
    assert caller.name == f"system:serviceaccount:{namespace}:caller"
    assert "system:serviceaccounts" in caller.groups
    await counting.close()


@pytest.mark.parametrize("wrong", ["", "x", "a.b.c", "x" * 20_000, "ü", "line\nbreak"])
async def test_what_is_no_token_has_no_owner(counting: CountingKube, wrong: str) -> None:
    assert await TokenReviewer(counting).caller(wrong) is None
    await counting.close()


async def test_a_token_for_somebody_else_is_refused(counting: CountingKube, token: str) -> None:
    reviewer = TokenReviewer(counting, ReviewSettings(audiences=("kopt",)))
    assert await reviewer.caller(token) is None
    await counting.close()


async def test_many_callers_at_once_are_one_question(counting: CountingKube, token: str) -> None:
    now_s = 0.0
    reviewer = TokenReviewer(counting, clock=lambda: now_s)
    callers = await asyncio.gather(*(reviewer.caller(token) for _ in range(50)))
    assert (len(set(callers)), counting.asked) == (1, 1)
    now_s = 59.0
    await reviewer.caller(token)
    assert counting.asked == 1
    now_s = 61.0
    await reviewer.caller(token)
    assert counting.asked == 2
    assert token not in repr(vars(reviewer))
    await counting.close()


async def test_an_unanswered_question_is_not_remembered(counting: CountingKube, token: str) -> None:
    reviewer = TokenReviewer(counting)
    counting.down = True
    with pytest.raises(Unreachable):
        await reviewer.caller(token)
    counting.down = False
    assert await reviewer.caller(token) is not None
    await counting.close()


async def test_a_flood_of_made_up_tokens_does_not_fill_the_memory(counting: CountingKube) -> None:
    reviewer = TokenReviewer(counting, ReviewSettings(most=10))
    await asyncio.gather(*(reviewer.caller(f"made-up-{number}") for number in range(40)))
    assert len(reviewer._callers._answers) == 10
    await counting.close()


async def test_rights_are_those_of_rbac(counting: CountingKube, namespace: str) -> None:
    reviewer = TokenReviewer(counting)
    anybody = Caller(f"system:serviceaccount:{namespace}:caller", groups=("system:authenticated",))
    assert await reviewer.may(anybody, "get", "/healthz")
    assert not await reviewer.may(anybody, "post", "/v1/demand")
    assert await reviewer.may(Caller("root", groups=("system:masters",)), "post", "/v1/demand")
    await counting.close()


async def test_who_may_not_review_is_told(control_plane: Any, token: str, namespace: str) -> None:
    async with connect(control_plane.kubeconfig_for("caller", namespace)) as unprivileged:
        with pytest.raises(Forbidden, match="tokenreviews"):
            await TokenReviewer(unprivileged).caller(token)
