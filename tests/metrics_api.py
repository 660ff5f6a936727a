"""Where no kube-proxy is: the way from the API server to the process that serves the chart's external metrics."""

from chart import NAMESPACE
from controlplane.api import Api, has_condition

METRICS_ACCOUNT = "kopt-autoscaling"
"""Of the Deployment, the Service and the account."""
METRICS_API = ("apiregistration.k8s.io/v1", "APIService", "v1beta1.external.metrics.k8s.io")


def lead_metrics_to(api: Api, host: str, port: int) -> None:
    """The installed Service and APIService lead to this host (a name, or an address) once this returns."""
    nothing = {"selector": None, "clusterIP": None, "clusterIPs": None, "ports": None}
    spec = nothing | {"type": "ExternalName", "externalName": host}
    api.patch("v1", "Service", METRICS_ACCOUNT, {"spec": spec}, NAMESPACE)
    api.patch(*METRICS_API, {"spec": {"service": {"port": port}}}, "")
    api.wait(*METRICS_API, lambda service: has_condition(service, "Available"), "")
