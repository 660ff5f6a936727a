"""The few series that alerts on faults go by are scraped more often than the rest, and stored once."""

import re
from typing import Any

from kopt.core.hardware.gpu_telemetry import BY_NAME, FAULTS, HELD, SHARE, UP


def endpoints(charts: Any, **monitoring: Any) -> list[dict[str, Any]]:
    objects = charts.render({"telemetry": {"enabled": True}, "monitoring": {"enabled": True, **monitoring}})
    (monitor,) = [
        each for each in objects if each["kind"] == "PodMonitor" and each["metadata"]["name"] == "kopt-telemetry"
    ]
    scraped: list[dict[str, Any]] = monitor["spec"]["podMetricsEndpoints"]
    return scraped


def test_faults_have_an_interval_of_their_own_and_come_by_one_path(charts: Any) -> None:
    every, faults = endpoints(charts)
    assert (every["port"], every["interval"], every.get("path", "/metrics")) == ("metrics", "30s", "/metrics")
    assert (faults["port"], faults["interval"], faults["path"]) == ("metrics", "5s", "/metrics/faults")
    assert every["honorLabels"] is faults["honorLabels"] is True
    (left_out,) = every["metricRelabelings"]
    assert (left_out["action"], left_out["sourceLabels"]) == ("drop", ["__name__"])
    names = {UP, HELD, SHARE, *(each.metric for each in BY_NAME.values())}
    assert {name for name in names if re.fullmatch(left_out["regex"], name)} == set(FAULTS)
    # `up` and what else Prometheus notes of a scrape would be the same series twice.
    assert faults["relabelings"] == [{"sourceLabels": ["__metrics_path__"], "targetLabel": "metrics_path"}]


def test_without_an_interval_they_come_with_the_others(charts: Any) -> None:
    (every,) = endpoints(charts, faultInterval="")
    assert set(every) == {"port", "interval", "honorLabels"}
