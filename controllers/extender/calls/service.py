"""Answers to the scheduler's calls, and the upkeep of the books between them."""

import time
from collections.abc import Callable, Mapping

from kopt.cluster.client.resources import Key, Object
from kopt.cluster.runtime.informer import Change
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.cluster.workloads.placement.allocations import NodeReport
from kopt.cluster.workloads.placement.pod_state import PodState, pod_state_of
from kopt.cluster.workloads.requests.pods import Wish
from kopt.controllers.extender.allocated import Allocated
from kopt.controllers.extender.binding.queue import BindAnswer, Binds
from kopt.controllers.extender.binding.request import Binder
from kopt.controllers.extender.books.topologies import TopologyReport
from kopt.controllers.extender.books.typical_pods import Learner
from kopt.controllers.extender.decider import Decider
from kopt.controllers.extender.decision_log import PodDecision
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.controllers.extender.node_list import NodeNames, WireError
from kopt.controllers.extender.protocol import BindCall, Offer, filter_reply, scores_reply, unchanged_reply
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.controllers.extender.traces import Spans
from kopt.core.hardware.complaint import Complaint
from kopt.core.scheduling.placement import FleetNode
from kopt.policies.placement.feasible import SENTENCES, Refusal
from kopt.policies.placement.fleet import Fleet, Holding, Stage

_TEXTS = {int(code): f"GPU placement: {text}" for code, text in SENTENCES.items()}
_PERMANENT = frozenset(int(code) for code in SENTENCES if code.permanent)


class Extender:
    """One replica's decisions. Nothing here blocks; only `bind` waits, for the API server."""

    def __init__(
        self,
        fleet: Fleet,
        binder: Binder,
        settings: ExtenderSettings,
        metrics: ExtenderMetrics,
        *,
        spans: Spans | None = None,
        announce: Callable[[PodDecision], None] = lambda _: None,
        changed: Callable[[PodState], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        gate: Gate = OPEN,
    ) -> None:
        self.fleet, self.decider = fleet, Decider(fleet, settings, metrics, announce, clock, gate)
        self.log = self.decider.log
        self.binds = Binds(self.decider, binder, settings, metrics, self._pod_of, self._bound, clock)
        self.pods: dict[str, PodState] = {}
        """Unfinished pods by uid."""
        self.allocated = Allocated(fleet, self.log, metrics, announce, changed)
        self.wishes: dict[Key, Wish] = {}
        self._binder, self._settings, self._metrics, self._clock = binder, settings, metrics, clock
        self._spans, self._announce, self._changed = spans or Spans(None), announce, changed
        self._learner = Learner()
        metrics.pending.set_function(lambda: len(self.decider.pending))
        self._first_observed_s: dict[str, float] = {}

    # what the scheduler asks

    def filter(self, offer: Offer) -> bytes:
        """The winner first; with ``shortlist`` its runners-up. Pods without GPUs keep every node."""
        pod = self._parsed(offer.pod)
        if not self.decider.chooses_for(pod):
            return unchanged_reply(offer)
        self._first_observed_s.setdefault(pod.uid, self._clock())
        held = self.fleet.holdings.get(pod.uid)
        if held is not None and held.stage > Stage.RESERVED and offer.names.has(held.node):
            return filter_reply([held.node])
        self.pods.setdefault(pod.uid, pod)
        self.decider.gangs.saw(pod)
        self.decider.replicas.saw(pod)
        placement, acts = self.decider.decide(pod, offer.names)
        if not acts:
            return unchanged_reply(offer)
        choice = placement.choice
        if choice.node is None:
            self.decider.refused(pod, placement)
            return self._refusal(pod, offer.names)
        others = [ranked.node for ranked in choice.runner_ups] if self._settings.shortlist > 1 else []
        return filter_reply([choice.node, *others][: self._settings.shortlist])

    def prioritize(self, offer: Offer) -> bytes:
        """10 for the node that was reserved, 0 for the others; an empty list where we have no say."""
        pod = self._parsed(offer.pod)
        if not self.decider.chooses_for(pod) or not self.decider.acts_on(pod):
            return b"[]"
        held = self.fleet.holdings.get(pod.uid)
        names = offer.names.names
        if held is None or held.node not in names:
            self.decider.decide(pod, offer.names)
            held = self.fleet.holdings.get(pod.uid)
        return scores_reply(names, held.node if held is not None else None)

    async def bind(self, call: BindCall) -> BindAnswer:
        """Post the Binding."""
        return await self.binds.bind(call)

    def timed(self, verb: str, offer: Offer, seconds: float) -> None:
        """Note how long an answer took."""
        self._metrics.decided(verb, seconds)
        if self._spans.wanted and (pod := self.pods.get(offer.uid)) is not None:
            self._spans.add(pod.uid, pod.traceparent, verb, seconds)

    # what the informers tell

    def pod_state(self, document: Object) -> PodState:
        """What to keep of a pod. Raises KeyError, TypeError or ValueError for a document that is none."""
        return pod_state_of(document, self.pods.get(document["metadata"]["uid"]), self.wishes)

    def pod_changed(self, change: Change[PodState]) -> None:
        """Keep the books as the pods are."""
        old, new = change.old, change.new
        if old is new:
            return
        if new is None or (old is not None and old.uid != new.uid):
            assert old is not None
            self._forget_pod(old)
        if new is None:
            return
        if old is None:
            self._learner.saw(new.ask)
        if new.finished:
            self._forget_pod(new)
            return
        self.pods[new.uid] = new
        self.decider.gangs.saw(new)
        self.decider.replicas.saw(new)
        if new.node:
            self._pod_bound(new)
        elif new.ask.uses_gpus:
            self.decider.pending[new.uid] = new
            self._first_observed_s.setdefault(new.uid, self._clock())
        if new.workload or (old is not None and old.workload):
            self._changed(new)

    def node_changed(self, change: Change[Mapping[str, FleetNode]]) -> None:
        """Keep the nodes as they are."""
        if self.fleet.set_node(change.key[1], change.new or {}) and change.new:
            self.decider.freed.set()

    def topology_changed(self, change: Change[TopologyReport]) -> None:
        """Keep how a node's GPUs are linked, and what its agent says is worse than it was."""
        node, report = change.key[1], change.new
        self.fleet.set_links(node, report.links if report is not None else None)
        self.fleet.set_complaint(node, "topology", report.complaint if report is not None else None)
        self.fleet.set_traffic(node, report.traffic if report is not None else (), report.read_s if report else 0.0)
        self.decider.freed.set()

    def bandwidth_changed(self, change: Change[Complaint]) -> None:
        """Keep what tests with other nodes say of a node."""
        self.fleet.set_complaint(change.key[1], "pairs", change.new)
        self.decider.freed.set()

    def health_changed(self, change: Change[Complaint]) -> None:
        """Keep what the health controller says of a node and its GPUs."""
        self.fleet.set_complaint(change.key[1], "health", change.new)
        self.decider.freed.set()

    def allocation_changed(self, change: Change[NodeReport]) -> None:
        """Keep the books as the node's kubelet says that its pods have its GPUs."""
        node = change.key[1]
        self.allocated.reported(node, change.new)
        for holding in self.fleet.on_node(node):
            pod = self.pods.get(holding.uid)
            if pod is not None and pod.node == node:
                self.allocated.book(pod)
        # Who waits may fit now, and annotations are corrected between calls.
        self.decider.freed.set()

    def namespace_changed(self, change: Change[str]) -> None:
        """Keep what the annotations of namespaces say of the mode."""
        if change.new:
            self.decider.modes[change.key[1]] = change.new
        else:
            self.decider.modes.pop(change.key[1], None)

    # between calls

    async def teach(self) -> None:
        """Learn typical pods from what came since."""
        await self._learner.teach(self.fleet)
        self._metrics.unconfirmed.set(self.fleet.unconfirmed())

    def sweep(self) -> list[Holding]:
        """Release expired reservations; returns the assumed ones, which have to be looked up."""
        return self.decider.expire(self.binds.is_binding)

    def looked_up(self, holding: Holding, pod: Object | None) -> None:
        """What the API server says of a pod whose Binding was not seen; None for a pod that is gone."""
        current = self.pod_state(pod) if pod is not None else None
        if current is not None and current.uid == holding.uid and not current.finished and current.node:
            self._metrics.expired.labels("confirmed").inc()
            self._pod_bound(current)
            return
        self._metrics.expired.labels("released").inc()
        self.decider.release(holding.uid)

    # how

    def _parsed(self, pod: Object) -> PodState:
        try:
            return self.pod_state(pod)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError(f"the Pod cannot be read: {error!r}") from error

    def _refusal(self, pod: PodState, names: NodeNames) -> bytes:
        refused: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for name, code in self.fleet.refusals(pod.ask, names).items():
            text = _TEXTS[code]
            if code == Refusal.TOPOLOGY and (why := self.fleet.complaints.text(name)):
                text += f"; it is degraded: {why}"
            (unresolvable if code in _PERMANENT else refused)[name] = text
        return filter_reply((), refused, unresolvable)

    async def _pod_of(self, call: BindCall) -> PodState | None:
        """The pod of a call. One that the informer has not shown yet is read: bound unread, it would be given no GPUs.
        None for one that was made anew under its name."""
        pod = self.pods.get(call.uid)
        if pod is not None or call.uid in self.fleet.holdings:
            return pod
        document = await self._binder.pod(call.key)
        return self.pod_state(document) if document["metadata"]["uid"] == call.uid else None

    def _bound(self, call: BindCall, holding: Holding | None, posting_s: float) -> None:
        observed_s = self._first_observed_s.pop(call.uid, None)
        if observed_s is not None:
            self._metrics.created_to_bound.observe(self._clock() - observed_s)
        if holding is not None or observed_s is not None:
            self._metrics.bound.inc()
            self._metrics.bound_pods += holding is not None
        if self._spans.wanted and (pod := self.pods.get(call.uid)) is not None:
            self._spans.bound(pod.uid, pod.traceparent, call.node, posting_s)
        decision = self.log.ended(call.key, call.uid, "bound", call.node, holding.gpus if holding is not None else ())
        if decision is not None:
            self._announce(decision)

    def _pod_bound(self, pod: PodState) -> None:
        self.allocated.book(pod)
        self.decider.unplaced.pop(pod.uid, None)
        self.decider.pending.pop(pod.uid, None)
        if not self.binds.is_binding(pod.uid):
            self._first_observed_s.pop(pod.uid, None)

    def _forget_pod(self, pod: PodState) -> None:
        self.decider.release(pod.uid)
        self.pods.pop(pod.uid, None)
        self.allocated.forget(pod)
        self._first_observed_s.pop(pod.uid, None)
        self.decider.unplaced.pop(pod.uid, None)
        self.decider.pending.pop(pod.uid, None)
        self._spans.forget(pod.uid)
        self.decider.gangs.forget(pod)
        self.decider.replicas.forget(pod)
        if pod.workload:
            self._changed(pod)
