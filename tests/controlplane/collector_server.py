"""A real OpenTelemetry collector: it takes OTLP over HTTP, and writes what it has taken into a file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from controlplane.processes import NotReady, Server, free_port, wait_for

Object = dict[str, Any]


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as the collector wrote it; times are Unix nanoseconds, ids hexadecimal. ``error`` is its status' message,
    ``links`` are (trace, span)."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    about: Mapping[str, str]
    error: str
    links: tuple[tuple[str, str], ...]


class Collector:
    """A running collector, ready when the constructor returns; ``url`` is where spans are sent."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._spans, config = folder / "spans.json", folder / "collector.yaml"
        receiver = {"protocols": {"http": {"endpoint": self.url.removeprefix("http://")}}}
        config.write_text(
            yaml.safe_dump(
                {
                    "receivers": {"otlp": receiver},
                    "exporters": {"file": {"path": str(self._spans), "flush_interval": "100ms"}},
                    "service": {
                        "telemetry": {"metrics": {"level": "none"}},
                        "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
                    },
                }
            )
        )
        self.server = Server("collector", [binary, f"--config=file:{config}"], folder, url=self.url)
        try:
            self.server.wait_until(lambda: "Everything is ready" in self.server.log.read_text())
        except NotReady:
            self.stop()
            raise

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a process that sends its spans here, soon after they end."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def spans(self) -> list[ReceivedSpan]:
        """All that were received so far, each as often as it was sent; by their start."""
        # A line that is being written is read the next time.
        lines = self._spans.read_text().split("\n")[:-1] if self._spans.exists() else []
        received = [
            _span(scope_span, _texts(resource["resource"]).get("service.name", ""))
            for line in lines
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for scope_span in scope["spans"]
        ]
        return sorted(received, key=lambda span: (span.start_ns, span.end_ns))

    def wait(self, names: set[str], trace_id: str, timeout_s: float = 90) -> list[ReceivedSpan]:
        """The spans of a trace once it has one of each of these names."""

        def complete() -> list[ReceivedSpan] | None:
            trace = [span for span in self.spans() if span.trace_id == trace_id]
            return trace if names <= {span.name for span in trace} else None

        try:
            return wait_for(complete, timeout_s) or []
        except NotReady:
            there = sorted({span.name for span in self.spans() if span.trace_id == trace_id})
            raise NotReady(f"trace {trace_id} has no {sorted(names - {*there})}, only {there}") from None

    def stop(self) -> None:
        self.server.kill()


def _span(span: Object, service: str) -> ReceivedSpan:
    status = span.get("status", {})
    return ReceivedSpan(
        service,
        span["name"],
        span["traceId"],
        span["spanId"],
        span.get("parentSpanId", ""),
        int(span["startTimeUnixNano"]),
        int(span["endTimeUnixNano"]),
        _texts(span),
        status.get("message", "") if status.get("code") == 2 else "",
        tuple((link["traceId"], link["spanId"]) for link in span.get("links", ())),
    )


def _texts(owner: Object) -> dict[str, str]:
    return {item["key"]: str(item["value"].get("stringValue", "")) for item in owner.get("attributes", ())}
