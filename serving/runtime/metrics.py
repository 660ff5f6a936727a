"""What the run-time service counts."""

from prometheus_client import Counter, Gauge

from kopt.serving.contract.runtime_answers import RunTimeResponse
from kopt.serving.http.metrics import EndpointMetrics, VersionGauge


class RunTimeMetrics(VersionGauge):
    def __init__(self, metrics: EndpointMetrics) -> None:
        super().__init__(metrics, "runtime")
        registry = metrics.registry
        self._answers = Counter(
            "kopt_runtime_answers", "Questions about run times, by whose runs they were answered from.",
            ["level"], registry=registry,
        )  # fmt: skip
        self._fallbacks = Counter(
            "kopt_runtime_fallbacks", "Questions answered by the last runs alone.", ["reason"], registry=registry
        )
        self.runs = Counter("kopt_runtime_runs", "Starts and ends of jobs that were kept.", registry=registry)
        self._drifted = Gauge(
            "kopt_runtime_drifted_queues",
            "Queues in which the last runs alone are nearer than the model.",
            registry=registry,
            multiprocess_mode="livemax",
        )

    def answered(self, answer: RunTimeResponse) -> None:
        """Count one answer."""
        if answer.fallback:
            self._fallbacks.labels(answer.reasons[-1].code).inc()
        else:
            self._answers.labels("steps" if answer.by_steps else answer.level).inc()

    def drifted(self, queues: int) -> None:
        """How many queues of a cluster have drifted."""
        self._drifted.set(queues)
