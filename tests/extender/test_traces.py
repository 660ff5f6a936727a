"""Traces from the webhook's annotation to the Binding, as an OpenTelemetry collector receives them."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.extender.conftest import RunningExtender, gpu_pod
from tests.extender.test_scheduling_by_the_policy import bound

Start = Callable[..., RunningExtender]
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Receives OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportTraceServiceRequest.FromString(content)
                collector.spans += [
                    span
                    for resource in request.resource_spans
                    for scope in resource.scope_spans
                    for span in scope.spans
                ]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def collector() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.server.shutdown()
    one.server.server_close()


def test_a_sampled_pod_is_traced_from_the_webhook_to_its_binding(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start, collector: Collector
) -> None:
    api = control_plane.api
    space = api.space("ext-traces")
    with kwok.nodes(1, gpus=8) as nodes:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        extender = start_extender(control_plane, space, env=env)
        extender.start_scheduler(space)
        for name, flags in (("traced", "01"), ("untraced", "00")):
            context = {"kaiwo.ai/traceparent": f"00-{TRACE}-{SPAN}-{flags}"}
            api.create(gpu_pod(name, space, scheduler=space, selector=nodes.selector, annotations=context))
            bound(api, name, space)
        wait_for(lambda: len(collector.spans) >= 3)
        spans = {span.name: span for span in collector.spans}
        assert sorted(span.name for span in collector.spans) == ["bind", "filter", "schedule pod"]
        assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
        whole = spans["schedule pod"]
        assert whole.parent_span_id.hex() == SPAN
        assert {spans[name].parent_span_id for name in ("filter", "bind")} == {whole.span_id}
        assert whole.start_time_unix_nano == spans["filter"].start_time_unix_nano
        assert spans["filter"].end_time_unix_nano <= spans["bind"].start_time_unix_nano
        assert whole.end_time_unix_nano == spans["bind"].end_time_unix_nano
        uids = {one.value.string_value for one in whole.attributes if one.key == "k8s.pod.uid"}
        assert uids == {api.get("v1", "Pod", "traced", space)["metadata"]["uid"]}
        assert extender.metric("kopt_extender_created_to_bound_seconds_count") == 2
