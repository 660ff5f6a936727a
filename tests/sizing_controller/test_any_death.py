"""Whatever a job needs, whatever its dry run shows, wherever the controller dies: each hold ends in one release, with
a request that nothing known speaks against.

The cluster round the controller is played here, so that thousands of lives can be gone through;
``test_killed_anywhere`` does the same on the real one.
"""

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any

from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.client.api import AlreadyExists
from kopt.cluster.client.resources import JOBS, Key, Object, Resource
from kopt.cluster.holds.hold import PARKED, QUEUE_LABEL, holder_of
from kopt.cluster.objects.namespace import NamespaceSettings
from kopt.controllers.sizing.jobs import state_of
from kopt.controllers.sizing.pods import JobPod
from kopt.controllers.sizing.ports import SizingSettings
from kopt.controllers.sizing.profiles import Learned, learned_of
from kopt.controllers.sizing.reconciler import Reconciler
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.units import GIB, Bytes
from kopt.core.workload.executor import Executor
from kopt.core.workload.profile import DryRun, Spread
from kopt.core.workload.sizing import WorkloadProfile
from kopt.policies.sizing.profiling import PartitionOffer, ProfilingSettings
from kopt.policies.sizing.profiling_pod import PROFILING_LABEL, DryRunSettings

from .conftest import GPU
from .test_steps import KEY, a_job, merged

H100 = find_gpu("H100")
OFFERS = tuple(PartitionOffer(f"nvidia.com/mig-{one.name}", H100.name, one) for one in H100.partitions)
SIZES = {one.resource: one.profile.memory_bytes for one in OFFERS} | {GPU: H100.usable_bytes}
Deaths = Mapping[int, str]


class Dies(BaseException):
    """The controller's end."""


class Played:
    """A cluster in which a job that needs ``need`` bytes is run by a Job controller, and by Kueue if it is queued."""

    def __init__(self, need: int, shown: int | None, deaths: Deaths, *, queued: bool) -> None:
        labels = {QUEUE_LABEL: "gpus"} if queued else {}
        self.jobs: dict[Key, Object] = {
            KEY: merged(a_job(), {"metadata": {"labels": labels}, "spec": {"suspend": queued}})
        }
        self.need, self.shown, self.deaths, self.queued = need, shown, deaths, queued
        self.calls, self.now_s = 0, 1_800_000_000.0
        self.profiles: dict[str, Learned] = {}
        self.failed: list[JobPod] = []
        self.runs: list[tuple[int, str]] = []
        self.holds = self.releases = 0
        self.active = True

    # What the controller reads.

    def job(self, key: Key) -> Object | None:
        return self.jobs.get(key)

    def namespace(self, name: str) -> NamespaceSettings:
        return NamespaceSettings(True, "enforce")

    def pods(self, job: Key) -> list[JobPod]:
        if job == KEY:
            return list(self.failed)
        found = self._dry_run_pod(job[1])
        return [found] if job in self.jobs else []

    def learned(self, namespace: str, digest: str) -> Learned | None:
        return self.profiles.get(digest)

    def executor(self) -> Executor:
        return Executor.UNKNOWN

    def offers(self, pod: Object) -> tuple[PartitionOffer, ...]:
        return OFFERS

    async def last_log_lines(self, pod: JobPod) -> bool:
        with self._call():
            return True

    async def usable_resources(self, namespace: str, queue: str) -> frozenset[str]:
        with self._call():
            return frozenset(SIZES)

    async def stop(self, fence: object, job: Object) -> bool:
        with self._call():
            self.active = False
            return True

    async def resume(self, fence: object, job: Object) -> None:
        with self._call():
            self.active = True

    # What it writes.

    async def patch(self, resource: Resource, seen: Object, changes: Object) -> Object:
        with self._call():
            key = (seen["metadata"]["namespace"], seen["metadata"]["name"])
            if resource != JOBS:
                self._learn(merged(self.profiles[seen["spec"]["jobType"]].document, changes))
                return seen
            before = self.jobs[key]
            self.jobs[key] = merged(before, changes)
            self.holds += bool(holder_of(self.jobs[key])) and not holder_of(before)
            self.releases += bool(holder_of(before)) and not holder_of(self.jobs[key])
            if json.dumps(before["spec"]["template"]) != json.dumps(self.jobs[key]["spec"]["template"]):
                assert before["spec"]["suspend"], "the API server refuses to change what runs"
                # Kueue makes the Workload anew when the Job asks for something else.
                self.active = True
            return self.jobs[key]

    async def create(self, resource: Resource, body: Object) -> Object:
        with self._call():
            key = (body["metadata"]["namespace"], body["metadata"]["name"])
            if resource == JOBS:
                if key in self.jobs:
                    raise AlreadyExists(409, "AlreadyExists", "")
                self.jobs[key] = merged(body, {"metadata": {"uid": key[1], "resourceVersion": "1"}})
            else:
                self._learn(body)
            return body

    async def delete(self, resource: Resource, seen: Object, **_: Any) -> None:
        with self._call():
            self.jobs.pop((seen["metadata"]["namespace"], seen["metadata"]["name"]), None)

    # The rest of the cluster.

    def play(self) -> None:
        """What other controllers do until the next look."""
        job = self.jobs[KEY]
        if job.get("status", {}).get("succeeded"):
            return
        if not self.holds:
            # There is no room for it: one that has started would be left alone.
            return
        if self.queued:
            waits = job["metadata"]["labels"][QUEUE_LABEL] == PARKED or not self.active
            job["spec"]["suspend"] = waits
        if job["spec"].get("suspend"):
            job["status"] = {"conditions": [{"type": "Suspended", "status": "True"}]}
            return
        job["status"] = {"ready": 1}
        if holder_of(job):
            return
        asked = next(name for name in self._limits(job) if name in SIZES)
        if self.runs and self.runs[-1] == (len(self.failed), asked):
            return
        self.runs.append((len(self.failed), asked))
        if SIZES[asked] >= self.need:
            job["status"] = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
        else:
            self.failed.append(JobPod(("team", "p"), f"p{len(self.failed)}", "train", True, True, False, "", ""))

    def _learn(self, document: Object) -> None:
        found = learned_of(document)
        assert found is not None
        self.profiles[found.digest] = found

    def _dry_run_pod(self, name: str) -> JobPod:
        message = ""
        if self.shown is not None:
            profile = WorkloadProfile(H100.name, Bytes(self.shown), 90.0, 180, True, 0.05)
            message = json.dumps(DryRun(profile, activity=Spread(0.05, 0.05, 0.05)).to_dict())
        elif (dry_run := self.jobs.get(("team", name))) is not None:
            dry_run["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
        return JobPod(("team", name), "d", name, True, self.shown is None, False, message, "")

    @staticmethod
    def _limits(job: Object) -> Object:
        return dict(job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"])

    def _call(self) -> "_Call":
        self.calls += 1
        return _Call(self.deaths.get(self.calls, ""))


class _Call:
    """One call to the API server, in which the controller may die before it is sent, or before the answer is there."""

    def __init__(self, death: str) -> None:
        self._death = death

    def __enter__(self) -> None:
        if self._death == "before":
            raise Dies

    def __exit__(self, *_: object) -> None:
        if self._death == "after":
            raise Dies


async def _lives(world: Played, looks: int = 60) -> None:
    """A controller looks at every Job in turn, and the next takes over when it dies."""
    chosen = SizingSettings(DryRunSettings("agents"), ProfilingSettings())
    for _ in range(looks):
        for key in list(world.jobs):
            try:
                made = Reconciler(world, world, world, chosen, clock=lambda: world.now_s)  # type: ignore[arg-type]
                await made.reconcile(key)
            except Dies:
                continue
        world.play()
        world.now_s += 1


deaths = st.dictionaries(st.integers(1, 40), st.sampled_from(["before", "after"]), max_size=12)
needs = st.integers(1 * GIB, H100.usable_bytes)


@settings(max_examples=examples(200), deadline=None)
@given(needs, st.none() | needs, deaths, st.booleans())
def test_every_hold_ends_in_one_release_and_no_request_is_below_what_is_known(
    need: int, shown: int | None, struck: Deaths, queued: bool
) -> None:
    world = Played(need, shown, struck, queued=queued)
    asyncio.run(_lives(world))
    job = world.jobs[KEY]
    assert job["status"].get("succeeded") == 1, (job, world.runs)
    assert holder_of(job) == ""
    assert job["metadata"]["labels"].get(QUEUE_LABEL) == ("gpus" if queued else None)
    assert world.holds == world.releases >= 1
    # As long as the controller is dead, the Job controller tries again with what there is.
    sizes = [SIZES[asked] for asked, _ in itertools.groupby(asked for _, asked in world.runs)]
    assert sizes == sorted(set(sizes)), "never the same again, and never less, after it ran out of memory"
    assert len(sizes) <= 4
    assert sizes[0] >= (shown if shown is not None else SIZES[GPU])
    assert not [key for key, one in world.jobs.items() if PROFILING_LABEL in one["metadata"].get("labels", {})]
    state = state_of(job)
    assert state is not None
    assert (state.phase == "own") == (world.runs[-1][1] == GPU)
