"""Alerts of the last 30 days, as their reader may see them: those of a namespace are for whoever may list its pods."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace

from kopt.core.alerts.acknowledgement import Acknowledgement
from kopt.core.alerts.episodes import Episode
from kopt.dashboard.data.access import ALL_NAMESPACES, Holds, Right, pods_in, pods_of
from kopt.dashboard.data.alerts import AlertHistory, AlertsError
from kopt.dashboard.data.feed import Background, Connections, Feed

DAY_S = 86_400
WINDOWS_S = {"1d": DAY_S, "7d": 7 * DAY_S, "30d": 30 * DAY_S}
"""By what the address of the page calls them; the longest is in steps of 22 minutes, the others of a few."""
_EVERY_S, _AFTER_FAILURE_S = 30.0, 15.0
_LONG_EVERY_S = 600.0
Acknowledge = Callable[[Acknowledgement], Awaitable[None]]
"""Keeps it. Raises AlertsError."""


@dataclass(frozen=True)
class Alerts:
    """``histories`` are by the name of their window. ``acknowledge`` is None where the pages know no Prometheus;
    ``hides`` whether alerts of some namespaces, or of the cluster itself, are left out for the reader."""

    histories: tuple[tuple[str, AlertHistory], ...] = ()
    acknowledge: Acknowledge | None = None
    problem: str = ""
    hides: bool = False

    def history(self, window: str) -> AlertHistory | None:
        """None before it was read first."""
        return dict(self.histories).get(window)

    @property
    def firing(self) -> tuple[Episode, ...]:
        """What fires now, by the history whose samples are closest, from when it fired by the longest."""
        since_s: dict[str, float] = {}
        for _, history in self.histories:
            for each in history.episodes:
                if each.resolved_s is None:
                    since_s[each.identity] = min(each.fired_s, since_s.get(each.identity, each.fired_s))
        shortest = self.histories[0][1].episodes if self.histories else ()
        return tuple(replace(each, fired_s=since_s[each.identity]) for each in shortest if each.resolved_s is None)


class _Reader:
    def __init__(self, connections: Connections) -> None:
        self._source, self._clock = connections.records.alerts, connections.clock
        self._latest = Alerts(acknowledge=None if self._source is None else self._acknowledge)
        self._due_s: dict[str, float] = {}
        self._own: list[Acknowledgement] = []
        """Of the last minutes: a history that is read meanwhile may not have them."""
        self.background = Background(self._read, connections.clock)

    async def refresh(self) -> None:
        if self._source is not None:
            self.background.begin()

    async def latest(self) -> Alerts:
        return self._latest

    async def _read(self) -> float:
        assert self._source is not None
        for name, window_s in WINDOWS_S.items():
            if self._clock() < self._due_s.get(name, 0.0):
                continue
            try:
                history = await asyncio.to_thread(self._source.history, window_s)
            except AlertsError as error:
                self._latest = replace(self._latest, problem=f"{error}")
                return _AFTER_FAILURE_S
            added = [each for each in self._own if each not in history.acknowledgements]
            history = replace(history, acknowledgements=(*history.acknowledgements, *added))
            histories = {**dict(self._latest.histories), name: history}
            self._latest = replace(self._latest, histories=tuple(histories.items()), problem="")
            # Thirty days change little in ten minutes, and cost Prometheus more.
            self._due_s[name] = self._clock() + (_LONG_EVERY_S if window_s > 7 * DAY_S else _EVERY_S)
        return _EVERY_S

    async def _acknowledge(self, item: Acknowledgement) -> None:
        assert self._source is not None
        await asyncio.to_thread(self._source.acknowledge, item)
        self._own = [each for each in self._own if each.at_s > item.at_s - _LONG_EVERY_S] + [item]
        histories = tuple(
            (name, replace(each, acknowledgements=(*each.acknowledgements, item)))
            for name, each in self._latest.histories
        )
        self._latest = replace(self._latest, histories=histories)


def rights_to(episode: Episode) -> Collection[Right]:
    """What one has to hold to see it: the pods of every namespace that its labels name, else those of all."""
    labels = dict(episode.labels)
    # Prometheus renames the label of what is measured where its own target has one of that name.
    namespace = labels.get("exported_namespace") or labels.get("namespace")
    rights = {pods_in(namespace)} if namespace else set()
    service = labels.get("service", "")
    if "/" in service:
        rights.add(pods_of(service))
    return rights or {pods_in(ALL_NAMESPACES)}


def _restrict(alerts: Alerts, holds: Holds) -> Alerts:
    # Every right is asked for before any answer counts, so that all of them are looked up at once.
    needed = {right for _, each in alerts.histories for episode in each.episodes for right in rights_to(episode)}
    held = {right for right in sorted(needed, key=lambda right: right.namespace) if holds(right)}
    if holds(pods_in(ALL_NAMESPACES)):
        return alerts
    histories = []
    for name, history in alerts.histories:
        visible = tuple(each for each in history.episodes if held.issuperset(rights_to(each)))
        known = {each.identity for each in visible}
        acknowledged = tuple(each for each in history.acknowledgements if each.identity in known)
        histories.append((name, replace(history, episodes=visible, acknowledgements=acknowledged)))
    # Why Prometheus does not answer names its address.
    problem = "Alerts cannot be read now." if alerts.problem else ""
    return replace(alerts, histories=tuple(histories), problem=problem, hides=True)


ALERTS: Feed[Alerts] = Feed("alerts", Alerts, _Reader, _restrict)
