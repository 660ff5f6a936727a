"""One leader among replicas by a Lease, and writes that a deposed leader cannot make.

A Lease does not fence: a leader that is stopped (SIGSTOP, a frozen machine) past its lease goes on, when it wakes,
with the very write it was about to make. So a leader writes through its ``Fence``. Each write names the version of
the object that it was decided on; a new leader claims an object before it acts on it, which changes that version.
What an old leader sends later is refused by the API server; what it sent earlier, the new leader has read.

    leader = Leader(kube, "kopt-system", "extender", identity=pod_name)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(leader.run())
        async with leader.lead() as fence:
            job = await fence.claim(JOBS, await kube.get(JOBS, name, namespace))
            await fence.patch(JOBS, job, {"spec": {"suspend": True}})
"""

import asyncio
import contextlib
import logging
import math
import random
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from kopt.cluster.client.api import ApiError, Conflict, Kube, NotFound
from kopt.cluster.client.resources import LEASES, Object, Resource
from kopt.cluster.runtime.audit import audit_patch, audit_write
from kopt.core.times import micro_stamp

_LOG = logging.getLogger(__name__)
_YEAR_2020_S = 1_577_836_800
_TERM = re.compile(r"[0-9]{1,18}")
_MOST_DOUBTED = 1024
TERM_ANNOTATION = "kaiwo.ai/term"
"""On objects that a leader claimed: ``NAMESPACE/LEASE/TERM``."""
WORD_ANNOTATION = "kaiwo.ai/last-word"
"""On a Lease that was given back: what its last leader left for the next."""


@dataclass(frozen=True)
class LeaseSettings:
    """Times in seconds; the defaults are those of Kubernetes' own components."""

    duration_s: float = 15.0
    """Others take over when the Lease has not changed for this long. Whole seconds
    on the API server."""
    renew_within_s: float = 10.0
    """A leader that could not renew for this long stops leading by itself, before the others take over."""
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_within_s < self.duration_s or self.duration_s < 1:
            raise ValueError(f"{self}: 0 < retry_s < renew_within_s < duration_s, and at least a second of it")


class Deposed(Exception):
    """This process no longer leads; whatever it was about to do is the next leader's now."""


class LaterTerm(Deposed, Conflict):
    """An object has the mark of a later term: either this process no longer leads, which it is about to find out, or
    the mark was forged, which the next renewal shows. As a Conflict it concerns this object alone."""

    def __init__(self, message: str) -> None:
        super().__init__(409, "LaterTerm", message)


class Leader:
    """A candidate for the Lease ``name``. ``run`` campaigns and renews; ``leading`` is true only while it is safe."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        identity: str,
        settings: LeaseSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.namespace, self.name, self.identity = namespace, name, identity
        self.term = 0
        self.last_word = ""
        """What this leader leaves on the Lease for the next when it gives it back."""
        self.inherited: str | None = None
        """What the leader before this term left; None where it gave nothing back, and may not know that it is over."""
        self._kube, self._settings, self._clock = kube, settings or LeaseSettings(), clock
        self._safe_until_s = float("-inf")
        self._confirmed_s = float("-inf")
        self._lease: Object | None = None
        self._last_change: tuple[str, float] = ("", float("-inf"))
        self._changed = asyncio.Condition()
        self._hurried = asyncio.Event()

    def now_s(self) -> float:
        """By the clock that terms are measured with."""
        return self._clock()

    def hurry(self) -> None:
        """Read the Lease now: it was seen to be free."""
        self._hurried.set()

    @property
    def leading(self) -> bool:
        """Whether this process may act. Asks the clock, so that one that was stopped knows when it wakes."""
        return self._clock() < self._safe_until_s

    def has_led_since(self, at_s: float) -> bool:
        """Whether the server has accepted a renewal of this term that was sent after a moment (this leader's clock):
        then there was no later term before it."""
        return self._confirmed_s > at_s

    @property
    def holder(self) -> str:
        """Who holds the Lease, as last seen."""
        return str(((self._lease or {}).get("spec") or {}).get("holderIdentity") or "")

    async def run(self) -> None:
        """Campaign, renew, campaign again, until cancelled; then give the Lease back."""
        try:
            while True:
                await self._try()
                if self.leading:
                    # After each renewal: the term may have lapsed, and its work ended, while this one was under way.
                    async with self._changed:
                        self._changed.notify_all()
                # Spread out, so that candidates do not all write at the moment a Lease runs out.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.retry_s * random.uniform(0.75, 1.0)):
                        await self._hurried.wait()
                self._hurried.clear()
        finally:
            await self._release()

    @contextlib.asynccontextmanager
    async def lead(self) -> AsyncIterator["Fence"]:
        """Wait until this process leads; a Fence for this term. Leaving does not end the term, ``run`` does.

        The body is cancelled and Deposed raised when the term ends before it.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.leading)
        fence = Fence(self._kube, self, self.term)
        body = asyncio.current_task()
        assert body is not None
        deposed, cancelling = False, body.cancelling()

        async def watch_over() -> None:
            nonlocal deposed
            while fence.holds:
                await asyncio.sleep(max(0.01, self._safe_until_s - self._clock()))
            deposed = True
            body.cancel()

        guard = asyncio.create_task(watch_over())
        try:
            yield fence
        except asyncio.CancelledError:
            if not deposed or body.uncancel() > cancelling:
                raise
            raise Deposed(f"{self.identity} lost {self.namespace}/{self.name} in term {fence.term}") from None
        finally:
            guard.cancel()

    async def _try(self) -> None:
        try:
            # Half of it, so that one request that hangs does not cost the term.
            async with asyncio.timeout(self._settings.renew_within_s / 2):
                await self._round(self._clock())
        except Conflict:
            # Another candidate was faster; the next round reads which.
            self._lease = None
        except (ApiError, TimeoutError) as error:
            self._lease = None
            _LOG.warning("lease %s/%s cannot be read or renewed: %s", self.namespace, self.name, error or "too slow")

    async def _round(self, sent_s: float) -> None:
        lease = self._lease if self.leading and self._lease is not None else await self._read()
        spec = lease.get("spec") or {}
        mine = spec.get("holderIdentity") == self.identity and self.term == spec.get("leaseTransitions", 0) > 0
        if not mine and not self._expired(lease):
            self._lease, self._safe_until_s = lease, float("-inf")
            return
        # A new term also where this identity held the last one: what it had under way then is not fenced otherwise.
        term = self.term if mine else (int(spec.get("leaseTransitions") or 0) or self._newest_so_far()) + 1
        self._lease = await self._write(lease, term, mine)
        if not mine:
            was_released = "holderIdentity" in spec and not spec["holderIdentity"]
            self.inherited = (lease["metadata"].get("annotations") or {}).get(WORD_ANNOTATION) if was_released else None
            _LOG.info("%s leads %s/%s from term %d", self.identity, self.namespace, self.name, term)
        self.term = term
        # Counted from before the request: the others count from when they see it, which is later.
        self._safe_until_s = sent_s + self._settings.renew_within_s
        self._confirmed_s = sent_s

    def _newest_so_far(self) -> int:
        """The term before the first of a new Lease: seconds since 2020, so that it is above those of a Lease of this
        name that was deleted. Theirs are still on objects, and in caches of the API server."""
        return max(self.term, int(time.time()) - _YEAR_2020_S)

    async def _read(self) -> Object:
        try:
            return await self._kube.get(LEASES, self.name, self.namespace)
        except NotFound:
            return {"metadata": {"name": self.name, "namespace": self.namespace}}

    def _expired(self, lease: Object) -> bool:
        """Whether the Lease is free: released, or unchanged for its duration *by this process's clock*, so that
        clocks need not agree."""
        spec = lease.get("spec") or {}
        version = lease["metadata"].get("resourceVersion", "")
        if not spec.get("holderIdentity"):
            return True
        if version != self._last_change[0]:
            self._last_change = (version, self._clock())
        return self._clock() - self._last_change[1] > float(
            spec.get("leaseDurationSeconds") or self._settings.duration_s
        )

    async def _write(self, lease: Object, term: int, mine: bool) -> Object:
        now = micro_stamp(time.time())
        before = lease.get("spec") or {}
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self._settings.duration_s),
            "acquireTime": before.get("acquireTime") if mine else now,
            "renewTime": now,
            "leaseTransitions": term,
        }
        if "resourceVersion" not in lease["metadata"]:
            return await self._kube.create(LEASES, {"metadata": lease["metadata"], "spec": spec})
        return await self._kube.replace(LEASES, lease | {"spec": spec})

    async def _release(self) -> None:
        """Let another replica take over at once instead of after the duration."""
        leading, lease, self._safe_until_s = self.leading, self._lease, float("-inf")
        if not leading or lease is None:
            return
        spec = lease["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": micro_stamp(time.time())}
        annotations = (lease["metadata"].get("annotations") or {}) | {WORD_ANNOTATION: self.last_word}
        metadata = lease["metadata"] | {"annotations": annotations}
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._kube.replace(LEASES, lease | {"metadata": metadata, "spec": spec})


class Fence:
    """Writes of one term. Each takes the object as it was read and raises Deposed when the term is over, Conflict
    when the object has changed since (read it, decide, and write again) or is marked by a later term (LaterTerm)."""

    def __init__(self, kube: Kube, leader: Leader, term: int) -> None:
        self.term = term
        self._kube, self._leader = kube, leader
        self._lease = f"{leader.namespace}/{leader.name}"
        self._doubted: OrderedDict[tuple[str, str], float] = OrderedDict()
        """(uid, mark) of objects with the mark of a later term, and when each was first seen."""

    @property
    def holds(self) -> bool:
        return self._leader.leading and self._leader.term == self.term

    async def claim(self, resource: Resource, document: Object) -> Object:
        """Make an object this term's before acting on it; the object as it is then."""
        if (document["metadata"].get("annotations") or {}).get(TERM_ANNOTATION) == self._stamp:
            self._check(document)
            return document
        return await self.patch(resource, document, {})

    async def patch(self, resource: Resource, document: Object, changes: Object) -> Object:
        """A merge patch, under the condition that the object is as it was seen."""
        metadata = self._check(document)
        condition = {"resourceVersion": metadata["resourceVersion"]}
        wanted = changes.get("metadata", {})
        annotations = wanted.get("annotations", {}) | {TERM_ANNOTATION: self._stamp}
        body = changes | {"metadata": wanted | condition | {"annotations": annotations}}
        result = await self._kube.patch(resource, metadata["name"], body, metadata.get("namespace", ""))
        audit_patch(resource, document, changes)
        return result

    async def patch_status(self, resource: Resource, document: Object, changes: Object) -> Object:
        """A merge patch of the status, under the same condition. It carries no mark of the term: the API server drops
        changes of metadata there."""
        metadata = self._check(document)
        body = changes | {"metadata": {"resourceVersion": metadata["resourceVersion"]}}
        space = metadata.get("namespace", "")
        result = await self._kube.patch(resource, metadata["name"], body, space, subresource="status")
        audit_patch(resource, document, changes)
        return result

    async def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object:
        """PUT of an object as it was read, changed; its resourceVersion is the condition."""
        metadata = self._check(body)
        annotations = (metadata.get("annotations") or {}) | {TERM_ANNOTATION: self._stamp}
        filled = body | {"metadata": metadata | {"annotations": annotations}}
        result = await self._kube.replace(resource, filled, subresource=subresource)
        after = {key: value for key, value in body.items() if key in ("spec", "status", "data")}
        audit_write("replace", resource, metadata, after=after)
        return result

    async def delete(self, resource: Resource, document: Object, *, grace_s: int | None = None) -> None:
        metadata = self._check(document)
        await self._kube.delete(
            resource,
            metadata["name"],
            metadata.get("namespace", ""),
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            grace_s=grace_s,
        )
        audit_write("delete", resource, metadata)

    async def create(self, resource: Resource, body: Object) -> Object:
        """Needs a name that both leaders would choose: an old leader's create then fails with AlreadyExists."""
        metadata = body["metadata"]
        self.require_term()
        if not metadata.get("name"):
            raise ValueError("a fenced create needs a name; with generateName two leaders create two objects")
        annotations = (metadata.get("annotations") or {}) | {TERM_ANNOTATION: self._stamp}
        result = await self._kube.create(resource, body | {"metadata": metadata | {"annotations": annotations}})
        audit_write("create", resource, result.get("metadata") or metadata, after=body)
        return result

    @property
    def _stamp(self) -> str:
        return f"{self._lease}/{self.term}"

    def _check(self, document: Object) -> Object:
        self.require_term()
        metadata: Object = document["metadata"]
        if not metadata.get("resourceVersion"):
            raise ValueError("a fenced write needs the object as it was read, with its resourceVersion")
        stamp = str((metadata.get("annotations") or {}).get(TERM_ANNOTATION, ""))
        lease, _, term = stamp.rpartition("/")
        later = _TERM.fullmatch(term) is not None and int(term) > self.term
        if lease == self._lease and later and not self._is_forged(str(metadata.get("uid", "")), stamp):
            raise LaterTerm(f"{metadata['name']} belongs to term {term} of {lease}; this is term {self.term}")
        return metadata

    def _is_forged(self, uid: str, stamp: str) -> bool:
        """Anybody can write the annotation. A leader that renews its term after it has seen the mark of a later one
        knows that there is none."""
        first_s = self._doubted.setdefault((uid, stamp), self._leader.now_s())
        if len(self._doubted) > _MOST_DOUBTED:
            self._doubted.popitem(last=False)
        if not self._leader.has_led_since(first_s):
            self._leader.hurry()
            return False
        return True

    def require_term(self) -> None:
        """Raises Deposed where the term is over: for writes that are no patch of a whole object."""
        if not self.holds:
            raise Deposed(f"{self._leader.identity} no longer leads {self._lease} (term {self.term})")
