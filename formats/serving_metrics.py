"""Prometheus' metric names of inference servers, as queries for the requests that a service served in one step."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

STEP = "$step"
"""Stands for the step in a query, as in ``300s``."""
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SPECIAL = re.compile(r"[][\\.+*?()|{}^$-]")
"""What has a meaning in a regular expression of RE2."""


@dataclass(frozen=True)
class ServingMetrics:
    """One inference server: its counters of requests, of which the increases are added."""

    engine: str
    counters: tuple[str, ...]
    documentation: str
    """Where its authors name them."""


ENGINES = (
    # Requests that ended, by reason.
    ServingMetrics("vLLM", ("vllm:request_success_total",), "https://docs.vllm.ai/en/stable/usage/metrics.html"),
    # Requests and not inferences: a batch that a client sends counts once.
    ServingMetrics(
        "Triton",
        ("nv_inference_request_success", "nv_inference_request_failure"),
        "https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/metrics.html",
    ),
    # The model server's own; the proxy in front of it counts only where KServe runs on Knative.
    ServingMetrics(
        "KServe",
        ("request_predict_seconds_count",),
        "https://kserve.github.io/website/docs/model-serving/predictive-inference/observability/prometheus-metrics",
    ),
    # Requests at the HTTP proxy, and not those that one deployment sends to another.
    ServingMetrics(
        "RayServe", ("ray_serve_num_http_requests_total",), "https://docs.ray.io/en/latest/serve/monitoring.html"
    ),
)


class UnknownEngineError(ValueError):
    """No metric names of this inference server are known; the message names those that are."""


def query_of(engine: str, labels: Mapping[str, str]) -> str:
    """PromQL for the requests of the series with ``labels`` in one step (``STEP``), summed to one series.

    No value where nothing of it was scraped, and zero only where a counter was scraped and did not move.

    Raises UnknownEngineError; ValueError for what is no label's name.
    """
    counters, matchers = _counters(engine), _matchers(labels)
    first, *others = (f"sum(increase({counter}{matchers}[{STEP}]))" for counter in counters)
    # A counter that is absent is zero beside the first one; without the first there is no value at all.
    return " + ".join([first, *(f"({other} or vector(0))" for other in others)])


def grouped_query_of(engine: str, labels: Sequence[Mapping[str, str]]) -> str:
    """PromQL for what ``query_of`` gives for each of ``labels``, with one series for each, labelled so.

    All have the same names of labels. There may be more series than ``labels``: each value of one name is combined with
    all values of the others. Raises as ``query_of``.
    """
    counters, names = _counters(engine), list(labels[0])
    _require_names(names)
    matchers = ", ".join(f"{name}=~{_quoted(_alternatives({matched[name] for matched in labels}))}" for name in names)
    first, *others = (
        f"sum by ({', '.join(names)}) (increase({counter}{{{matchers}}}[{STEP}]))" for counter in counters
    )
    # ``vector(0)`` has no labels; the first counter's series times zero has the right ones.
    return " + ".join([first, *(f"({other} or {first} * 0)" for other in others)])


def _counters(engine: str) -> tuple[str, ...]:
    result = next((entry for entry in ENGINES if entry.engine.casefold() == engine.casefold()), None)
    if result is None:
        names = ", ".join(entry.engine for entry in ENGINES)
        raise UnknownEngineError(f"no metrics of {engine[:40]!r} are known; known are {names}; or give a query")
    return result.counters


def _alternatives(values: set[str]) -> str:
    """A regular expression of RE2, which Prometheus anchors at both ends."""
    return "|".join(_SPECIAL.sub(r"\\\g<0>", value) for value in sorted(values))


def _matchers(labels: Mapping[str, str]) -> str:
    _require_names(labels)
    return "{" + ", ".join(f"{name}={_quoted(value)}" for name, value in labels.items()) + "}"


def _require_names(names: Iterable[str]) -> None:
    if wrong := [name for name in names if not _LABEL.fullmatch(name)]:
        raise ValueError(f"{wrong[0][:40]!r} is not the name of a label")


def _quoted(text: str) -> str:
    """A string of PromQL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
