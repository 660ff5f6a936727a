"""Into which volumes of a pod no other job writes."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from controlplane.processes import until
from logtail_endpoint import Endpoint

from kopt.agents.logtail import volumes
from kopt.agents.logtail.claims import Claim, NodeClaims, mounts_of
from kopt.agents.logtail.folder_watch import VolumeWatch, WatchSettings
from kopt.agents.logtail.jobs import Jobs, JobSettings
from kopt.agents.logtail.offset_store import OffsetStore
from kopt.agents.logtail.pods import FollowedPod, claims_of, followed_pod
from kopt.agents.logtail.sender import SenderSettings
from kopt.cluster.client.api import Forbidden, Kube

Object = dict[str, Any]
UID, JOB = "5e3a-01", "research/llama"


def mount(claim: str, *, read_only: bool = False) -> Object:
    return {"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}


def pod_document(name: str, job: str, *mounted: Object, namespace: str = "research") -> Object:
    limits = {"nvidia.com/gpu": "1"}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}], "volumes": list(mounted)}
    metadata = {"namespace": namespace, "name": name, "uid": UID, "labels": {"job-name": job}}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


def followed(*mounted: Object) -> FollowedPod:
    pod = followed_pod(pod_document("llama-0", "llama", *mounted))
    assert pod is not None
    return pod


class Cluster:
    """The API server as far as claims go; those that are not in it may not be read."""

    def __init__(self, **modes: list[str]) -> None:
        self.modes, self.reads = modes, list[str]()

    async def get(self, resource: Any, name: str, namespace: str = "", subresource: str = "") -> Object:
        self.reads.append(name)
        if name not in self.modes:
            raise Forbidden(403, "Forbidden", "may not")
        return {"spec": {"accessModes": self.modes[name], "volumeName": f"pv-{name}"}}


def node_claims(cluster: Cluster, *pods: Object, listed: bool = True) -> NodeClaims:
    claims = NodeClaims(cast("Kube", cluster), "spec.nodeName=n")
    objects = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): mounts_of(pod) for pod in pods}
    claims.pods._objects.update({key: mounts for key, mounts in objects.items() if mounts is not None})
    if listed:
        claims.pods.synced.set()
    return claims


OWN, OTHER = pod_document("llama-0", "llama", mount("out")), pod_document("bert-0", "bert", mount("out"))


@pytest.mark.parametrize(
    ("modes", "pods", "exclusive"),
    [
        (["ReadWriteOncePod"], (), True),
        (["ReadWriteOnce"], (OWN,), True),
        (["ReadWriteOnce"], (OWN, pod_document("llama-1", "llama", mount("out"))), True),
        (["ReadWriteOnce"], (OWN, OTHER), False),
        (["ReadWriteOnce"], (OWN, pod_document("a", "b", mount("out", read_only=True))), True),
        (["ReadWriteOnce"], (OWN, pod_document("a", "b", mount("out"), namespace="elsewhere")), True),
        (["ReadWriteOnce"], (), False),
        (["ReadWriteMany"], (OWN,), False),
        (["ReadWriteOnce", "ReadWriteMany"], (OWN,), False),
        ([], (OWN,), False),
    ],
)
async def test_a_volume_is_a_jobs_own_by_its_access_mode_and_who_mounts_it(
    modes: list[str], pods: tuple[Object, ...], exclusive: bool
) -> None:
    claims, pod = node_claims(Cluster(out=modes), *pods), followed(mount("out"))
    assert claims.exclusive(pod, await claims.read(pod)) == ({"pv-out"} if exclusive else set())


async def test_before_the_pods_were_listed_only_a_claim_of_one_pod_is_its_own() -> None:
    claims = node_claims(Cluster(out=["ReadWriteOnce"], own=["ReadWriteOncePod"]), OWN, listed=False)
    pod = followed(mount("out"), mount("own"))
    assert claims.exclusive(pod, await claims.read(pod)) == {"pv-own"}


async def test_a_claim_that_may_not_be_read_is_nobodys_own() -> None:
    claims, pod = node_claims(Cluster(out=["ReadWriteOncePod"])), followed(mount("secret"), mount("out"))
    assert await claims.read(pod) == (Claim("out", "pv-out", ("ReadWriteOncePod",)),)


def test_claims_that_are_only_read_and_other_volumes_are_left_out() -> None:
    volumes_of_pod = [mount("a"), mount("a"), mount("b", read_only=True), {"name": "c", "emptyDir": {}}, "garbage", {}]
    assert claims_of({"volumes": volumes_of_pod}) == ("a",)
    assert claims_of({}) == ()
    assert mounts_of(pod_document("x", "x", {"name": "c", "emptyDir": {}})) is None


async def test_what_lies_in_a_volume_of_its_own_is_marked_as_long_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volumes, "_FIRST_SEARCH_S", 0.01)
    for volume in ("pv-out", "pv-shared"):
        folder = tmp_path / UID / "volumes" / "kubernetes.io~csi" / volume / "mount"
        folder.mkdir(parents=True)
        (folder / "model.pt").write_bytes(b"weights")
    cluster, endpoint = Cluster(out=["ReadWriteOnce"], shared=["ReadWriteMany"]), Endpoint()
    claims = node_claims(cluster, OWN)
    settings = WatchSettings(observe_s=0.01, confirm_s=0.02, settle_s=0.02)
    async with endpoint.client() as client:
        jobs = Jobs(client.checkpoint, OffsetStore(None), JobSettings(sender=SenderSettings(linger_s=0.0)))
        task = asyncio.create_task(jobs.run())
        await jobs.started()
        watch = VolumeWatch(jobs, tmp_path, settings, claims)
        jobs.watch(JOB, UID, partial(watch.watch, followed(mount("out"), mount("shared"))))

        def latest() -> dict[str, bool]:
            listings = [
                item for request in endpoint.requests for item in request.get("listings", ()) if "files" in item
            ]
            return {file["folder"]: file.get("exclusive", False) for file in listings[-1]["files"]} if listings else {}

        await until(lambda: latest() == {"pv-out": True, "pv-shared": False})
        claims.pods._objects["research", "bert-0"] = cast("Any", mounts_of(OTHER))
        await until(lambda: latest() == {"pv-out": False, "pv-shared": False})
        assert cluster.reads == ["out", "shared"], "claims are read now and then"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
