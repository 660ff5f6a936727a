"""What the sizing service counts."""

from prometheus_client import Counter

from kopt.core.workload.sizing import SizingEstimate
from kopt.serving.http.metrics import EndpointMetrics, VersionGauge


class SizingMetrics(VersionGauge):
    def __init__(self, metrics: EndpointMetrics) -> None:
        super().__init__(metrics, "sizing")
        registry = metrics.registry
        self.answers = Counter("kopt_sizing_answers", "Sizes answered by the model.", ["method"], registry=registry)
        self.refusals = Counter(
            "kopt_sizing_refusals", "Sizing questions without a size.", ["reason"], registry=registry
        )

    def answered(self, estimate: SizingEstimate) -> None:
        """Count one answer."""
        if estimate.memory.refused:
            self.refusals.labels(estimate.memory.reasons[0].code).inc()
        else:
            self.answers.labels(estimate.method.value).inc()
