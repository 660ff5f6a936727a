"""OpenTelemetry spans from a pod's first sight to its Binding (O6), in the trace that the webhook began.

Nothing is imported, kept or sent unless a collector is configured; one pod in a hundred is traced, unless the webhook
says so of more.
"""

import time
from collections import OrderedDict
from typing import Any

from kopt.cluster.runtime.tracing import export_wanted, is_sampled, parse_traceparent

PER_MILLE = 10
_MOST = 10_000


class Spans:
    """Times of the sampled pods between their calls; ``tracer`` is None without a collector."""

    def __init__(self, tracer: Any, per_mille: int = PER_MILLE) -> None:
        self._tracer, self._per_mille = tracer, per_mille
        self._calls: OrderedDict[str, list[tuple[str, int, int]]] = OrderedDict()

    @property
    def wanted(self) -> bool:
        return self._tracer is not None

    def add(self, uid: str, traceparent: str, name: str, seconds: float) -> None:
        """Note that ``name`` has just ended for a pod, after ``seconds``."""
        if self._tracer is None or not self._traced(uid, traceparent):
            return
        now_ns = time.time_ns()
        self._calls.setdefault(uid, []).append((name, now_ns - int(seconds * 1e9), now_ns))
        if len(self._calls) > _MOST:
            self._calls.popitem(last=False)

    def bound(self, uid: str, traceparent: str, node: str, posting_s: float) -> None:
        """End the pod's trace: a span over all its calls, and one for each."""
        self.add(uid, traceparent, "bind", posting_s)
        calls = self._calls.pop(uid, None)
        if not calls:
            return
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        parent = parse_traceparent(traceparent)
        context = None
        if parent is not None:
            parent_context = SpanContext(
                int(parent.trace_id, 16), int(parent.span_id, 16), True, TraceFlags(TraceFlags.SAMPLED)
            )
            context = set_span_in_context(NonRecordingSpan(parent_context))
        whole = self._tracer.start_span("schedule pod", context, start_time=min(start for _, start, _ in calls))
        whole.set_attribute("k8s.pod.uid", uid)
        whole.set_attribute("k8s.node.name", node)
        inside = set_span_in_context(whole)
        for name, start_ns, end_ns in calls:
            self._tracer.start_span(name, inside, start_time=start_ns).end(end_ns)
        whole.end(max(end for _, _, end in calls))

    def forget(self, uid: str) -> None:
        self._calls.pop(uid, None)

    def _traced(self, uid: str, traceparent: str) -> bool:
        parent = parse_traceparent(traceparent) if traceparent else None
        return parent.sampled if parent is not None else is_sampled(uid, self._per_mille)


def tracer() -> tuple[Any, Any]:
    """A tracer and what shuts it down, where OpenTelemetry's environment variables name a collector; else Nones."""
    if not export_wanted():
        return None, None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    # Who is traced is decided here, by the same rule as in the webhook; what arrives is sent.
    provider = TracerProvider(ALWAYS_ON, Resource.create({"service.name": "kopt-extender"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("kopt.controllers.extender"), provider
