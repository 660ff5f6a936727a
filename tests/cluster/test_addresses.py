"""Addresses, pauses and credentials: what needs no cluster."""

import random
from pathlib import Path

import pytest

from kopt.cluster.client.api import Kube, NoCluster, Unreachable
from kopt.cluster.client.credentials import KubeconfigAccess, ServiceAccountAccess, find_access
from kopt.cluster.client.resources import JOBS, NODES, PODS
from kopt.cluster.runtime.backoff import Backoff
from kopt.cluster.runtime.http.certificates import make_pair


def test_paths_are_those_of_the_api_server() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("team", "trainer", "binding") == "/api/v1/namespaces/team/pods/trainer/binding"
    assert JOBS.path("team") == "/apis/batch/v1/namespaces/team/jobs"
    assert NODES.path("", "n-1", "status") == "/api/v1/nodes/n-1/status"


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a%2fb", "a?b=c", "a#b", "a b", "ä", "\n", "../../secrets/x"])
def test_a_name_from_outside_leads_nowhere_else(name: str) -> None:
    for namespace, pod in ((name, "pod"), ("team", name)):
        with pytest.raises(ValueError, match="no name"):
            PODS.path(namespace, pod)


def test_a_namespace_belongs_to_what_has_one() -> None:
    with pytest.raises(ValueError, match="needs a namespace"):
        PODS.path("", "trainer")
    with pytest.raises(ValueError, match="has no namespace"):
        NODES.path("team", "n-1")


def test_pauses_grow_to_their_limit_and_begin_anew() -> None:
    backoff = Backoff(0.1, 1.0, random.Random(1))
    pauses = [backoff.next_s() for _ in range(20)]
    assert 0.05 <= pauses[0] <= 0.1
    assert all(0.5 <= pause <= 1.0 for pause in pauses[5:])
    assert len(set(pauses)) == 20
    backoff.reset()
    assert backoff.next_s() <= 0.1


async def test_a_pods_service_account_is_read_again_as_it_is_rotated(tmp_path: Path) -> None:
    pair = make_pair(["kubernetes"], 1.7e9, 3600)
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_bytes(pair.authority)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = find_access(None, environ, account=tmp_path)
    assert isinstance(access, ServiceAccountAccess)
    first = await access.credentials()
    assert (first.host, first.authorization) == ("https://[fd00::1]:6443", "Bearer first")
    (tmp_path / "token").write_text("second")
    assert await access.credentials() is first
    renewed = await access.renew()
    assert renewed.authorization == "Bearer second"
    assert renewed.tls is first.tls
    assert "second" not in repr(renewed)


async def test_a_kubeconfig_given_wins_and_its_absence_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert isinstance(find_access(tmp_path / "mine", {"KUBECONFIG": "other"}), KubeconfigAccess)
    with pytest.raises(NoCluster, match="set KUBECONFIG"):
        find_access(None, {}, account=tmp_path)
    for name, text in (("none", None), ("empty", ""), ("list", "[1, 2]"), ("rubbish", "\x00\x01"), ("partial", "a: b")):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(NoCluster, match="cannot be used as a kubeconfig" if text is not None else "there is no"):
            await find_access(tmp_path / name, {}).renew()


async def test_nobody_there_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "{current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}],"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]}"
    )
    kube = Kube(find_access(tmp_path / "config", {}))
    with pytest.raises(Unreachable, match="Cannot connect"):
        await kube.list(NODES)
    await kube.close()
    with pytest.raises(Unreachable, match="closed"):
        await kube.list(NODES)


async def test_what_hinders_a_connection_is_a_sentence(tmp_path: Path) -> None:
    """Not the repr of an SSL context."""
    (tmp_path / "config").write_text(
        "{current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}],"
        " clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', insecure-skip-tls-verify: true}}]}"
    )
    kube = Kube(find_access(tmp_path / "config", {}))
    with pytest.raises(Unreachable) as raised:
        await kube.list(NODES)
    await kube.close()
    assert raised.value.message == "Cannot connect to 127.0.0.1:1 (Connection refused)"
