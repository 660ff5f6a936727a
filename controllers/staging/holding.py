"""What is done about workloads that ask for data: held before their queue, told how far it is, let go, steered."""

import json
import time
from collections.abc import Callable, Collection, Sequence

from kopt.cluster.api import AlreadyExists
from kopt.cluster.held import hold, marks, pass_on, release, wait_turn
from kopt.cluster.node_bandwidths import seconds
from kopt.cluster.resources import JOBS, KUEUE_WORKLOADS, PODS, Object
from kopt.cluster.staged_data import STAGED_DATA, STAGING_ANNOTATION, body_of, told
from kopt.controllers.sizing.pods import JOB_NAME_LABEL, has_begun
from kopt.controllers.staging.affinity import affinity_to
from kopt.controllers.staging.given import Cluster, Reads, StagingSettings, Tell, Writes, keys_of
from kopt.controllers.staging.scene import Scene, mode_of
from kopt.controllers.staging.views import HOLDER, KueueView, WorkloadView
from kopt.core.decision import Mode
from kopt.core.staged_data import DataPhase, NodeCache, StagedData
from kopt.policies.staging.decide import is_ready
from kopt.policies.staging.holding import Asker, Hold, hold_for

_NOT_HELD = (
    "Pods in a queue of Kueue's are not held: it may start before its data is there. Make a Job of it, or leave out "
    "the queue's label."
)
_TELL_EVERY_S = 10.0
_SMALL = ("bytes", "bytesDone", "secondsLeft", "at")


class Holding:
    """``look_at`` one workload; raises as the writes do, and HoldError for what others hold in a way we do not know."""

    def __init__(self, cluster: Cluster, reads: Reads, writes: Writes, settings: StagingSettings, tell: Tell,
                 clock: Callable[[], float] = time.time) -> None:  # fmt: skip
        self._cluster, self._reads, self._writes, self._settings = cluster, reads, writes, settings
        self._tell, self._clock = tell, clock
        self._said: dict[str, str] = {}

    async def look_at(self, view: WorkloadView, scene: Scene) -> float | None:
        """In how many seconds to look again if nothing changes; None for never."""
        mode, managed = mode_of(self._cluster, view.key[0], view.mode, self._settings.mode)
        found, missing = self._data(view, scene)
        acts = managed and mode is not Mode.OBSERVE and not view.finished
        if acts and not view.opted_out:
            await self._make(view, scene)
        complete = all(is_ready(scene.known(scene.views[one.key], self._settings)) for one in found)
        ready = complete and not view.request.problem and not missing
        if ready and view.holder != HOLDER and _parsed(view.told).get("state") != "ready":
            # Where its copies are has to be written into it first.
            ready = _common_nodes(found) is None
        kueue = scene.kueue.get(view.uid, ())
        begun = await self._has_begun(view, asks=mode is Mode.ENFORCE and acts and not ready)
        verdict = hold_for(_asker(view, kueue, mode, managed=managed, begun=begun), ready=ready)
        state, reason, message = _state(view, found, missing, ready=ready)
        if view.resource == PODS and view.queued and acts and mode is Mode.ENFORCE and not ready and not view.ran:
            self._say(view, "NotHeld", _NOT_HELD)
        match verdict:
            case Hold.RELEASE:
                await self._release(view, found, ready=ready, state=(state, reason, message))
            case Hold.HOLD | Hold.PARK:
                await self._hold(view, found, (state, reason, message))
            case Hold.MARK:
                # First the mark: whoever comes after us, or switches us off, then knows whose stop it is.
                made = {"metadata": marks(HOLDER, {})}
                await self._patch(view, made, self._told(view, found, (state, reason, message)))
                self._say(view, "StoppedForData", "Its queue has admitted it, and none of its containers has begun.")
            case Hold.STOP:
                await self._stop(kueue)
            case Hold.QUEUE_UP:
                await self._patch(view, wait_turn(view.document, HOLDER))
            case _ if acts:
                return await self._keep_told(view, found, (state, reason, message))
        if verdict is Hold.LEAVE and managed and mode is Mode.OBSERVE and not ready and not view.ran:
            self._say(view, "StagingAdvised", "In the mode enforce it would wait for its data before its queue.")
        return None

    def forget(self, scene: Scene) -> None:
        """What was said of workloads that are gone."""
        there = {view.uid for view in scene.workloads}
        self._said = {uid: said for uid, said in self._said.items() if uid in there}

    def _data(self, view: WorkloadView, scene: Scene) -> tuple[list[StagedData], list[str]]:
        """What there is of the StagedData that it names, and the names of those that there are not."""
        keys = keys_of(view)
        found = [scene.views[key].data for key in keys if key in scene.views]
        return found, [name for space, name in keys if (space, name) not in scene.views]

    async def _make(self, view: WorkloadView, scene: Scene) -> None:
        """The StagedData of what it asks for without a name."""
        for name, spec in view.request.made:
            if (view.key[0], name) not in scene.views:
                try:
                    made = await self._writes.create(STAGED_DATA, body_of(view.key[0], name, spec))
                except AlreadyExists:
                    continue
                self._cluster.noted(STAGED_DATA, made)

    async def _has_begun(self, view: WorkloadView, *, asks: bool) -> bool:
        """Whether stopping it loses something; its pods are only asked for where that decides."""
        if view.ran or not view.runs or not asks or view.holder not in ("", HOLDER):
            return view.ran
        if view.resource != JOBS:
            return True
        pods = await self._reads.list(PODS, view.key[0], label_selector=f"{JOB_NAME_LABEL}={view.key[1]}")
        return any(has_begun(one) for one in pods.items)

    async def _hold(self, view: WorkloadView, found: Sequence[StagedData], state: tuple[str, str, str]) -> None:
        changes = hold(view.resource, view.document, HOLDER)
        await self._patch(view, changes, self._told(view, found, state))
        self._say(view, "HeldForData", f"It waits for {', '.join(view.request.all_names) or 'its data'}, in no queue.")

    async def _stop(self, kueue: Sequence[KueueView]) -> None:
        """Suspended by anybody else, Kueue would start it again."""
        for one in kueue:
            if one.active and one.has_quota:
                changes = hold(KUEUE_WORKLOADS, one.document, HOLDER)
                self._cluster.noted(KUEUE_WORKLOADS, await self._writes.patch(KUEUE_WORKLOADS, one.document, changes))

    async def give_back(self, one: KueueView, scene: Scene) -> None:
        """A Workload of Kueue's that we have stopped is its queue's again once what it is of is."""
        owner = next((view for view in scene.workloads if view.uid == one.owner_uid), None)
        if one.holder == HOLDER and (owner is None or owner.holder != HOLDER):
            changes = release(KUEUE_WORKLOADS, one.document)
            self._cluster.noted(KUEUE_WORKLOADS, await self._writes.patch(KUEUE_WORKLOADS, one.document, changes))

    async def _release(self, view: WorkloadView, found: Sequence[StagedData], *, ready: bool,
                       state: tuple[str, str, str]) -> None:  # fmt: skip
        changes = pass_on(view.resource, view.document)
        nodes = _common_nodes(found) if ready else None
        if nodes is not None and not view.finished:
            changes = changes | {"spec": _merged(changes.get("spec") or {}, self._steered(view, nodes))}
        await self._patch(view, changes, self._told(view, found, state))
        if ready:
            self._say(view, "DataReady", "Its data is complete: its queue decides now.")
        else:
            self._say(view, "LetGo", "It is not to be held any more.")

    def _steered(self, view: WorkloadView, nodes: Collection[str]) -> Object:
        """The change of a Job's or a pod's ``spec`` that keeps its pods to nodes with a copy, beside what it asks for
        itself; of other kinds none."""
        names = {one.name: one.hostname for one in self._cluster.nodes()}
        wanted = sorted(names.get(one, one) for one in nodes)
        spec = view.document["spec"]
        if view.resource == JOBS:
            return {"template": {"spec": {"affinity": affinity_to(wanted, spec["template"]["spec"])}}}
        return {"affinity": affinity_to(wanted, spec, only_adds=True)} if view.resource == PODS else {}

    async def _keep_told(self, view: WorkloadView, found: Sequence[StagedData],
                         state: tuple[str, str, str]) -> float | None:  # fmt: skip
        """The annotation of a workload that stays as it is: at once where words change, figures from time to time."""
        text = self._told(view, found, state)
        before, after = _parsed(view.told), _parsed(text)
        words = [{key: value for key, value in one.items() if key not in _SMALL} for one in (before, after)]
        if words[0] == words[1]:
            if before.get("bytesDone") == after.get("bytesDone") or view.holder != HOLDER:
                return None
            due_s = _TELL_EVERY_S - (self._clock() - _seconds(before))
            if due_s > 0:
                return due_s
        await self._patch(view, {}, text)
        if after.get("state") == "failed" and words[0].get("message") != after.get("message"):
            self._say(view, "DataMissing", f"{after.get('reason')}: {after.get('message')}")
        return None

    def _told(self, view: WorkloadView, found: Sequence[StagedData], state: tuple[str, str, str]) -> str:
        return told(state[0], view.request, list(found), state[1], state[2], self._clock())

    async def _patch(self, view: WorkloadView, changes: Object, text: str = "") -> None:
        metadata = dict(changes.get("metadata") or {})
        if text:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), STAGING_ANNOTATION: text}
        document = await self._writes.patch(view.resource, view.document, changes | {"metadata": metadata})
        self._cluster.noted(view.resource, document)

    def _say(self, view: WorkloadView, reason: str, sentence: str) -> None:
        if self._said.get(view.uid) != sentence:
            self._said[view.uid] = sentence
            self._tell(view.resource.reference(*view.key, view.uid), reason, sentence)


def _asker(view: WorkloadView, kueue: Sequence[KueueView], mode: Mode, *, managed: bool, begun: bool) -> Asker:
    return Asker(
        mode, managed, view.queued, view.runs, begun, any(one.has_quota for one in kueue),
        any(one.holder == HOLDER for one in kueue), view.parked, view.changeable, view.stopped, view.finished,
        view.opted_out, view.holder == HOLDER, view.holder not in ("", HOLDER), view.next,
    )  # fmt: skip


def _state(view: WorkloadView, found: Sequence[StagedData], missing: Sequence[str], *,
           ready: bool) -> tuple[str, str, str]:  # fmt: skip
    """State, reason and message of ``kaiwo.ai/staging``."""
    if ready:
        return "ready", "", ""
    if view.request.problem:
        return "failed", "BadRequest", view.request.problem
    made = {name for name, _ in view.request.made}
    if absent := [one for one in missing if one not in made]:
        return "failed", "NotFound", f"there is no StagedData {', '.join(absent)} in {view.key[0]}"
    for data in found:
        speaker = data.speaker
        if speaker is not None and speaker.reason is not None:
            state = "failed" if data.phase is DataPhase.FAILED else "held"
            return state, speaker.reason.value, f"{data.name}: {speaker.message}"
    message = next((one.missing or (one.speaker.message if one.speaker else "") for one in found), "")
    return "held", "", message


def _common_nodes(found: Sequence[StagedData]) -> set[str] | None:
    """Nodes with a copy of all that lies on nodes; None where nothing does."""
    places = [set(one.ready_places) for one in found if isinstance(one.spec.destination, NodeCache)]
    return set.intersection(*places) if places else None


def _merged(first: Object, second: Object) -> Object:
    """Two merge patches in one."""
    found = dict(first)
    for key, value in second.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found


def _parsed(text: str) -> Object:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _seconds(before: Object) -> float:
    try:
        return seconds(str(before.get("at")))
    except ValueError:
        return 0.0
