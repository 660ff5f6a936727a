"""What the extender counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_DECISION_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
_BOUND_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0)


class ExtenderMetrics:
    """Counters of one process, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.calls = Counter(
            "kopt_extender_calls", "Calls answered, by verb and outcome.", ["verb", "outcome"], registry=registry
        )
        self.seconds = Histogram(
            "kopt_extender_seconds",
            "Time from a read call to its answer; a bind without its Binding.",
            ["verb"],
            buckets=_DECISION_S,
            registry=registry,
        )
        self.binding_seconds = Histogram(
            "kopt_extender_binding_seconds",
            "Time that the API server takes for a Binding.",
            buckets=_DECISION_S,
            registry=registry,
        )
        self.created_to_bound = Histogram(
            "kopt_extender_created_to_bound_seconds",
            "From the first sight of a GPU pod to its Binding.",
            buckets=_BOUND_S,
            registry=registry,
        )
        self.bindings = Counter(
            "kopt_extender_bindings",
            "Bindings of GPU pods, by reason (bound or why not).",
            ["reason"],
            registry=registry,
        )
        self.refused = Counter(
            "kopt_extender_refused_nodes",
            "Nodes refused to pods that no node could take, by reason.",
            ["reason"],
            registry=registry,
        )
        self.allocations = Counter(
            "kopt_extender_allocations",
            "Choices of GPUs whose node has said what the pod got, by reason: followed, differs, parts, unknown.",
            ["reason"],
            registry=registry,
        )
        self.expired = Counter(
            "kopt_extender_expired",
            "Reservations that were not confirmed in time, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.nudged = Counter(
            "kopt_extender_nudged",
            "Pending pods annotated to have the scheduler retry them.",
            registry=registry,
        )
        self.object_errors = Counter(
            "kopt_object_errors",
            "Objects that cannot be read or handled; all others are.",
            ["controller", "kind", "reason"],
            registry=registry,
        )
        self.unconfirmed = Gauge(
            "kopt_extender_unconfirmed", "Pods that hold GPUs and are not seen bound yet.", registry=registry
        )
        self.pending = Gauge("kopt_extender_pending", "GPU pods without a node.", registry=registry)
        self.bound = self.bindings.labels("bound")
        self.failed_bindings = 0
        """Of pods whose place the extender had chosen, and not of those that are gone or that nobody could bind."""
        self.bound_pods = 0
        self.bind_seconds = self.seconds.labels("bind")
        self._seconds = {verb: self.seconds.labels(verb) for verb in ("filter", "prioritize")}
        self._answered = {verb: self.calls.labels(verb, "answered") for verb in ("filter", "prioritize", "bind")}
        self.leading = Gauge("kopt_extender_leading", "1 in the replica that serves.", registry=registry)

    def decided(self, verb: str, seconds: float) -> None:
        """Note the time of one answer."""
        self._seconds[verb].observe(seconds)

    def answered(self, verb: str) -> None:
        """Count one answer. Looking the labels up takes longer than counting."""
        self._answered[verb].inc()

    def outcomes(self) -> tuple[int, int]:
        """Bindings that went well, and those that failed for what the extender has chosen."""
        return self.bound_pods, self.failed_bindings

    def exposition(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)
