"""Trace contexts on pods and Jobs (W3C Trace Context), from the webhook that sees them first to the end of their run.

The context travels in an annotation, because nothing else of a pod's creation reaches the scheduler; a Job's stands in
its templates as well, so that all its pods, and Kueue's Workload, carry on one trace. One in a hundred is traced by
default: at 100 % the exporter cost more than the work.
"""

import hashlib
import os
import re
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import text

TRACEPARENT_ANNOTATION = "kaiwo.ai/traceparent"
JOB_TRACEPARENT_ANNOTATION = "kaiwo.ai/job-traceparent"
"""In the templates of a Job that is traced, and so on its pods and in Kueue's Workload."""
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1


@dataclass(frozen=True)
class TraceContext:
    """A trace and the span in it that what follows belongs to, both in lower-case hexadecimal."""

    trace_id: str
    span_id: str
    sampled: bool = True
    parent_id: str = ""
    """The span that this one belongs to; empty for the first of its trace."""

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{_SAMPLED if self.sampled else 0:02x}"


def parse_traceparent(text: object) -> TraceContext | None:
    """The context in a ``traceparent``; None for anything that is not a valid one of version 00."""
    match = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    return TraceContext(match[1], match[2], bool(int(match[3], 16) & _SAMPLED))


def context_of(document: Object) -> TraceContext | None:
    """The context that an object, or a template of pods, carries; None where it is not traced."""
    context = parse_traceparent(text(document, "metadata", "annotations", TRACEPARENT_ANNOTATION))
    return context if context is not None and context.sampled else None


def job_context_of(metadata: Mapping[str, Any]) -> TraceContext | None:
    """The context of the Job that made a pod, in the ``metadata`` of the pod or of a template."""
    return parse_traceparent(text(metadata, "annotations", JOB_TRACEPARENT_ANNOTATION))


def derived_context(parent: TraceContext, uid: str, phase: str, start_ns: int = 0) -> TraceContext:
    """The span of an object's phase in the parent's trace; always the same, so that who sends it again, after a restart
    or from another replica, sends the same span. ``start_ns``: for phases that an object may have more than once."""
    digest = hashlib.sha256(f"{uid} {phase} {start_ns}".encode(errors="surrogatepass"))
    return TraceContext(parent.trace_id, digest.hexdigest()[:16], parent_id=parent.span_id)


def new_context(parent: TraceContext | None = None) -> TraceContext:
    """A new span, in the parent's trace if there is one."""
    if parent is None:
        return TraceContext(secrets.token_hex(16), secrets.token_hex(8))
    return TraceContext(parent.trace_id, secrets.token_hex(8), parent_id=parent.span_id)


def is_sampled(uid: str, per_mille: int) -> bool:
    """Whether a request is among the ``per_mille`` of a thousand that are traced; always the same for one uid."""
    return zlib.crc32(uid.encode(errors="surrogatepass")) % 1000 < per_mille


@dataclass(frozen=True)
class Span:
    """A finished span; times are Unix time in nanoseconds. ``error`` says why it ended badly, empty where it did not;
    ``links``: the spans that it belongs together with, which need not be in its trace."""

    name: str
    context: TraceContext
    start_ns: int
    end_ns: int
    about: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    error: str = ""
    links: tuple[TraceContext, ...] = ()


def name_attributes(group: str, kind: str, name: str) -> dict[str, str]:
    """A workload's name by OpenTelemetry's conventions, which backends join by; by our own where these have none."""
    if (group, kind) in (("", "Pod"), ("batch", "Job")):
        return {f"k8s.{kind.lower()}.name": name}
    return {"kaiwo.workload.kind": f"{kind}.{group}" if group else kind, "kaiwo.workload.name": name}


def untraced(span: Span) -> None:
    """Where a span goes that nobody wants."""


def export_wanted() -> bool:
    """Whether the environment names a collector (OpenTelemetry's own variables)."""
    return bool(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))


class SpanExport:
    """Sends finished spans whose ids were given away before (in an annotation); nothing without a collector.

    Batches leave on a thread of OpenTelemetry's own; a collector that is slow or gone costs spans, never an answer.
    """

    def __init__(self, service: str) -> None:
        self._processor: Any = None
        if not export_wanted():
            return
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._resource = Resource.create({"service.name": service})
        self._processor = BatchSpanProcessor(OTLPSpanExporter())

    @property
    def wanted(self) -> bool:
        return self._processor is not None

    def record(self, span: Span) -> None:
        """Send a span."""
        if self._processor is None:
            return
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

        def identity(trace_id: str, span_id: str) -> SpanContext:
            return SpanContext(int(trace_id, 16), int(span_id, 16), False, TraceFlags(TraceFlags.SAMPLED))

        context = span.context
        self._processor.on_end(
            ReadableSpan(
                span.name,
                identity(context.trace_id, context.span_id),
                identity(context.trace_id, context.parent_id) if context.parent_id else None,
                self._resource,
                dict(span.about),
                links=[Link(identity(link.trace_id, link.span_id)) for link in span.links],
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
                start_time=span.start_ns,
                end_time=span.end_ns,
                instrumentation_scope=InstrumentationScope(__name__),
            )
        )

    def flush(self) -> None:
        """Send what is kept; blocks for as long as the collector takes."""
        if self._processor is not None:
            self._processor.force_flush()

    def close(self) -> None:
        """Send what is left; blocks for as long as the collector takes."""
        if self._processor is not None:
            self._processor.shutdown()
