"""What the checkpoint service counts."""

from prometheus_client import Counter

from kopt.serving.http.metrics import EndpointMetrics, VersionGauge


class CheckpointMetrics(VersionGauge):
    def __init__(self, metrics: EndpointMetrics) -> None:
        super().__init__(metrics, "checkpoint")
        registry = metrics.registry
        self.lines = Counter("kopt_checkpoint_lines", "Lines of logs read.", registry=registry)
        self.fallbacks = Counter(
            "kopt_checkpoint_fallbacks", "Questions about jobs without an answer.", ["reason"], registry=registry
        )
