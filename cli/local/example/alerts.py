"""Alerts of the example cluster: what the rules that come with kopt would have said of it over 30 days.

Each firing recurs by the time of day, in UTC, as the rest of the example does; those about GPUs agree with its health.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kopt.cli.local.example.cluster import NODES
from kopt.core.alerts.acknowledgement import Acknowledgement
from kopt.core.alerts.catalogue import alert_rules
from kopt.core.alerts.episodes import Episode
from kopt.dashboard.data.alerts import AlertHistory, AlertsError

_HOUR_S, _DAY_S, _STEP_S = 3600.0, 86_400.0, 300
_OPERATOR = "ada@example.com"


@dataclass(frozen=True)
class _Recurring:
    """An alert that fires every ``days`` days at ``hour`` for ``hours``; ``note`` is what somebody says within it."""

    alert: str
    days: int
    hour: float
    hours: float
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


_RECURRING = (
    _Recurring("KoptGpuIdle", 1, 18, 14, {"namespace": "research", "pod": "notebook-0", "node": NODES[4], "gpu": "3"}),
    _Recurring("KoptJobWaitsLong", 1, 9, 5, {"cluster_queue": "gpus"}),
    _Recurring("KoptGpuThrottled", 6, 14, 2.5, {"node": NODES[2], "gpu": "6"}, "fan of the rack replaced"),
    _Recurring("KoptPodRestarts", 3, 11, 1, {"namespace": "research", "pod": "finetune-1"}, "asked its owner"),
    _Recurring("KoptDemandUnusual", 5, 20, 2, {"service": "chat", "direction": "higher"}),
    _Recurring(
        "KoptControllerFails", 14, 4, 0.5, {"controller": "staging", "kind": "StagedData", "reason": "Download"}
    ),
)


class ExampleAlerts:
    """Nothing is kept of it: an acknowledgement is refused."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._severities = {rule.alert: rule.severity.value for rule in alert_rules()}

    def history(self, window_s: int) -> AlertHistory:
        now_s = self._clock()
        acknowledgements = list[Acknowledgement]()
        listed = []
        for episode, note in self._every(now_s, now_s - window_s):
            listed.append(episode)
            if note:
                acknowledgements.append(Acknowledgement(episode.identity, episode.fired_s + 600, _OPERATOR, note))
        newest = sorted(listed, key=lambda episode: (-episode.fired_s, episode.alert))
        return AlertHistory(tuple(newest), tuple(acknowledgements), _STEP_S)

    def acknowledge(self, item: Acknowledgement) -> None:
        raise AlertsError("These alerts are an example; nothing was kept.")

    def _every(self, now_s: float, begin_s: float) -> Iterator[tuple[Episode, str]]:
        today = int(now_s // _DAY_S)
        for each in _RECURRING:
            for day in range(int(begin_s // _DAY_S) - 1, today + 1):
                fired_s = day * _DAY_S + each.hour * _HOUR_S
                end_s = fired_s + each.hours * _HOUR_S
                if day % each.days == 0 and fired_s < now_s and end_s > begin_s:
                    yield self._episode(each.alert, each.labels, fired_s, end_s if end_s < now_s else None), each.note
        # The errors that the example's health has against a GPU: the node keeps new pods off while they count.
        at_s = now_s - now_s % _HOUR_S
        labels = {"node": NODES[1], "gpu": "4", "xid": "94"}
        yield self._episode("KoptGpuXidFatal", labels, at_s - 5 * _HOUR_S, at_s - 4 * _HOUR_S), "node reset, watched"
        yield self._episode("KoptGpuNodesCondemned", {}, at_s - 5 * _HOUR_S, None), "replacement ordered"

    def _episode(self, alert: str, labels: Mapping[str, str], fired_s: float, resolved_s: float | None) -> Episode:
        every = {**labels, "alertname": alert, "severity": self._severities[alert]}
        return Episode(tuple(sorted(every.items())), fired_s, resolved_s)
