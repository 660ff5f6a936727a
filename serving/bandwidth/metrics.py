"""What the bandwidth service counts."""

from prometheus_client import Counter

from kopt.serving.contract.bandwidth.answers import BandwidthResponse
from kopt.serving.http.metrics import EndpointMetrics, VersionGauge


class BandwidthMetrics(VersionGauge):
    def __init__(self, metrics: EndpointMetrics) -> None:
        super().__init__(metrics, "bandwidth")
        registry = metrics.registry
        self.answers = Counter(
            "kopt_bandwidth_answers", "Sets of GPUs answered by the model.", ["hardware"], registry=registry
        )
        self.fallbacks = Counter(
            "kopt_bandwidth_fallbacks", "Questions about sets answered without it.", ["reason"], registry=registry
        )

    def answered(self, answer: BandwidthResponse) -> None:
        """Count one answer about sets of GPUs."""
        if answer.fallback:
            self.fallbacks.labels(answer.reasons[0].code).inc()
            return
        for answered in (*answer.sets, *(() if answer.best is None else (answer.best,))):
            self.answers.labels("unknown" if answered.unknown else "known").inc()
