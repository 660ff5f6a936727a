"""Alerts as the pages have them, made up."""

from kopt.core.alerts.acknowledgement import Acknowledgement
from kopt.core.alerts.episodes import Episode
from kopt.dashboard.data.alerts import AlertHistory
from kopt.dashboard.pages.alerts.data import WINDOWS_S, Acknowledge, Alerts


def episode(alert: str, severity: str, fired_s: float, resolved_s: float | None = None, **labels: str) -> Episode:
    every = {"alertname": alert, "severity": severity, **labels}
    return Episode(tuple(sorted(every.items())), fired_s, resolved_s)


def state(name: str, now_s: float, acknowledge: Acknowledge | None = None) -> Alerts:
    """One alert that fires, acknowledged, and one that was resolved, both about a pod ``namespace/pod`` or a name."""
    namespace, _, pod = name.rpartition("/")
    own = {"namespace": namespace or name, "pod": pod}
    fires = episode("KoptPodRestarts", "warning", now_s - 7200, **own)
    over = episode("KoptGpuIdle", "info", now_s - 90_000, now_s - 86_000, **own)
    said = Acknowledgement(fires.identity, now_s - 3600, name, name)
    history = AlertHistory((fires, over), (said,), 60)
    return Alerts(tuple((window, history) for window in WINDOWS_S), acknowledge)
