"""One pass over everything: what one object has wrong costs no other object its turn."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kopt.cluster.client.api import Page
from kopt.cluster.client.resources import JOBS, Object, Resource
from kopt.cluster.objects.custom.staged_data import STAGED_DATA, staged_data_of
from kopt.controllers.staging.ports import DataObject
from kopt.controllers.staging.reading import read_workload
from kopt.controllers.staging.reconciler import Reconciler
from kopt.controllers.staging.state import read_data
from kopt.controllers.staging.views import DownloadJob, DownloadPod, RequestingWorkload
from kopt.core.staging.staged_data import CLAIM
from kopt.policies.staging.copies import Run, Verb

from .test_scene import NOW, Seen, settings


class Written(Seen):
    """A cluster in memory that takes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: dict[str, Object] = {}
        self.created: list[Object] = []
        self.held: list[str] = []

    def data(self) -> Sequence[DataObject]:
        return [read_data(one) for one in self.documents.values()]

    def noted(self, resource: Resource, document: Object) -> None:
        if resource == STAGED_DATA:
            self.documents[document["metadata"]["name"]] = document

    def stage(self, name: str, source: str) -> None:
        metadata = {"namespace": "team", "name": name, "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"}
        self.documents[name] = {
            "metadata": metadata,
            "spec": {"source": source, "destination": {"claim": "claim", "path": name}},
        }

    async def create(self, resource: Resource, body: Object) -> Object:
        self.created.append(body)
        return body

    async def patch(self, resource: Resource, seen: Object, changes: Object) -> Object:
        if resource == JOBS:
            assert changes["metadata"]["labels"]["kaiwo.ai/held"] == "staging"
            self.held.append(seen["metadata"]["name"])
            return seen
        return seen | {"metadata": seen["metadata"] | {"finalizers": changes["metadata"].get("finalizers")}}

    async def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        return body

    async def delete(self, resource: Resource, seen: Object) -> None:
        raise AssertionError

    async def list(self, *about: str, **selectors: str) -> Page:
        return Page([], "1", "")

    def step(self) -> int:
        """How much went wrong."""
        reconciler = Reconciler(self, self, self, settings(), lambda about, reason, text: None, clock=lambda: NOW)
        asyncio.run(reconciler.step())
        return reconciler.errors


def asking(name: str, **metadata: Any) -> RequestingWorkload:
    metadata = {
        "namespace": "team",
        "name": name,
        "uid": name,
        "resourceVersion": "1",
        "annotations": {"kaiwo.ai/staged-data": "tokens"},
    } | metadata
    view = read_workload(
        {"metadata": metadata, "spec": {"suspend": False, "template": {"spec": {"containers": []}}}, "status": {}}, JOBS
    )
    assert view is not None
    return view


@pytest.mark.parametrize("source", ["hf://bert-base-uncased", "https://[host/file", "pvc://Data/x", "pvc://a/../../x"])
def test_a_source_that_cannot_be_read_is_told_and_keeps_no_other_from_being_staged(source: str) -> None:
    cluster = Written()
    cluster.stage("bad", source)
    cluster.stage("good", "s3://bucket/good")
    cluster.step()
    assert [one["spec"]["template"]["spec"]["containers"][0]["args"][1] for one in cluster.created] == [
        "s3://bucket/good"
    ]
    (copy,) = staged_data_of(cluster.documents["bad"]).copies
    assert copy.reason == "BadRequest"
    assert copy.message


def test_downloads_whose_pods_cannot_begin_keep_no_other_from_beginning() -> None:
    cluster = Written()
    for number in range(settings().rules.at_once):
        uid = f"uid-stuck-{number}"
        cluster.stage(f"stuck-{number}", "s3://bucket/stuck")
        run = Run(CLAIM, Verb.STAGE, 1, 1)
        cluster.made.append(DownloadJob({}, "1", ("team", uid), uid, uid, run))
        cluster.said.append(
            DownloadPod(("team", uid), uid, uid, False, False, pending_reason="its pod waits: no such claim")
        )
    cluster.stage("good", "s3://bucket/good")
    cluster.step()
    assert [one["spec"]["template"]["spec"]["containers"][0]["args"][1] for one in cluster.created] == [
        "s3://bucket/good"
    ]
    cluster.said.clear()
    cluster.created.clear()
    cluster.step()
    assert cluster.created == [], "eight run, or are about to"


def test_an_object_that_nobody_understands_keeps_no_other_from_being_held() -> None:
    cluster = Written()
    cluster.asking = [asking("a"), asking("b")]
    cluster.asking[0].document["metadata"].pop("resourceVersion")
    assert cluster.step() == 1
    assert cluster.held == ["b"]


def test_a_mark_that_somebody_wrote_by_hand_keeps_no_other_from_being_held() -> None:
    cluster = Written()
    cluster.asking = [asking("a", labels={"kaiwo.ai/held": "me"}), asking("b")]
    assert cluster.step() == 0
    assert cluster.held == ["b"]


def test_a_store_whose_etags_are_no_md5_can_be_staged_from() -> None:
    cluster = Written()
    cluster.stage("encrypted", "s3://bucket/set")
    cluster.documents["encrypted"]["spec"]["sourceChecksums"] = False
    cluster.step()
    (made,) = cluster.created
    assert "--no-source-checksums" in made["spec"]["template"]["spec"]["containers"][0]["args"]
