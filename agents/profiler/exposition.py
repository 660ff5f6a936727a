"""Exposition text of dcgm-exporter or AMD's exporter, decoded by Prometheus' own parser (package prometheus-client)."""

import time

from kopt.agents.profiler.readings import Reading
from kopt.formats.gpu_metrics import MetricsError, exporters


def read_exposition(text: str, namespace: str = "", pod: str = "") -> Reading:
    """One scrape, of all pods or of one. Raises MetricsError for text that is not in the format."""
    from prometheus_client.parser import text_string_to_metric_families

    if text and not text.endswith("\n"):
        raise MetricsError("the last line is cut: it has no end", text.count("\n") + 1)
    try:
        series = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]
    except (ValueError, IndexError, KeyError) as error:
        raise MetricsError(f"not Prometheus' text format: {error}", _bad_line(text)) from error
    return Reading(time.time(), exporters.samples_of(series, namespace, pod))


def _bad_line(text: str) -> int:
    """The first line that cannot be read alone; 0 where each can."""
    from prometheus_client.parser import text_string_to_metric_families

    for number, line in enumerate(text.splitlines(), 1):
        try:
            list(text_string_to_metric_families(f"{line}\n"))
        except (ValueError, IndexError, KeyError):
            return number
    return 0
