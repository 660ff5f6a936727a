"""A component switches its own feature off when it sees an alarm, and writes why: once, whoever of the replicas comes
first, and until a person switches it on again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from kopt.cluster.client.api import ApiError, Kube
from kopt.cluster.client.resources import FEATURE_ROLLOUTS, Object
from kopt.cluster.objects.custom.feature_rollout import ROLLOUT_NAME
from kopt.cluster.runtime.switches import FLIPPED, LiveSwitches, sentence_of, user_of, write_switches
from kopt.core.error_budget import ErrorBudget, Objective
from kopt.core.switches import OFF, Alarm, AlarmKind, AlarmUnknown

_LOG = logging.getLogger(__name__)
EVERY_S = 30.0
"""Between two checks; the short window of an error budget has ten of them."""
AlarmSource = Callable[[float], Awaitable[Alarm | None]]
"""An alarm there is now, on what was seen since a time (Unix seconds); it may raise AlarmUnknown."""
Announce = Callable[[Object, str, str], None]
"""An event: reference, reason, sentence."""


class FallBack:
    """Looks at the sources of one feature. ``announce`` emits the event, where the component may write events."""

    def __init__(
        self,
        kube: Kube,
        switches: LiveSwitches,
        feature: str,
        sources: Sequence[AlarmSource],
        announce: Announce = lambda *_: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kube, self._switches, self._feature, self._sources = kube, switches, feature, sources
        self._announce, self._clock = announce, clock

    async def run(self) -> None:
        """Check for ever; cancelled by who runs it."""
        while True:
            await self.check()
            await asyncio.sleep(EVERY_S)

    async def check(self) -> bool:
        """Whether this check has switched the feature off."""
        now = self._switches.now
        if now.percent(self._feature) == OFF:
            return False
        setting = now.settings.get(self._feature)
        # What a person knew of when they switched it on does not count against it.
        since_s = setting.at_s if setting is not None else float("-inf")
        for source in self._sources:
            try:
                alarm = await source(since_s)
                if alarm is not None and await self._raise(alarm):
                    return True
            except (ApiError, AlarmUnknown) as error:
                _LOG.warning("%s: alarms cannot be checked: %s", self._feature, error)
        return False

    async def _raise(self, alarm: Alarm) -> bool:
        user = await user_of(self._kube)
        feature, at_s = self._feature, self._clock()
        _, flip = await write_switches(self._kube, lambda now: now.fall_back(user, feature, alarm, at_s))
        if flip is None:
            return False
        _LOG.warning("%s", sentence_of(flip))
        self._announce(FEATURE_ROLLOUTS.reference("", ROLLOUT_NAME), FLIPPED, sentence_of(flip))
        return True


class Client(Protocol):
    """A client of the prediction endpoint, which counts."""

    @property
    def answered(self) -> int: ...

    @property
    def failed(self) -> int: ...


def answers_of(client: Client) -> AlarmSource:
    """The alarm about too many failed answers."""
    return FailureRate("answers of the endpoint", lambda: (client.answered, client.failed))


class FailureRate:
    """An alarm while too large a share of something fails. ``count`` returns how often it went well and how often it
    failed since the process began; ``what`` and ``failed`` are the words for it: "bindings", "failed"."""

    def __init__(
        self,
        what: str,
        count: Callable[[], tuple[int, int]],
        *,
        failed: str = "failed",
        kind: str = AlarmKind.ERROR_RATE,
        objective: Objective | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._what, self._failed, self._count, self._kind, self._clock = what, failed, count, kind, clock
        self._budget = ErrorBudget(objective)

    async def __call__(self, since_s: float) -> Alarm | None:
        now_s = self._clock()
        self._budget.observe(now_s, *self._count())
        burn = self._budget.burn(since_s)
        if burn is None:
            return None
        objective = self._budget.objective
        text = (
            f"{burn.failed} of {burn.total} {self._what} {self._failed} within {objective.long_s / 60:g} minutes, and "
            f"{burn.short:.0%} within the last {objective.short_s / 60:g}; at most {objective.highest_share:.0%} may."
        )
        # Each time it is another alarm: evidence is counted anew after a person has switched on.
        return Alarm(self._kind, f"{self._what.replace(' ', '-')}@{int(now_s)}", text)
