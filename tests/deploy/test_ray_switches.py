"""Ray Serve has a proxy on every node with the environment of our pods, as the Service leads to all of them."""

import os
import subprocess
import sys

import pytest
import yaml
from chart import Helm, Object

from tests.deploy.test_chart_settings import pod_templates

pytestmark = pytest.mark.ray
SAYS = """
from ray.serve._private import constants
print(constants.RAY_SERVE_ENABLE_HA_PROXY, constants.RAY_SERVE_ENABLE_DIRECT_INGRESS)
"""


def test_every_ray_node_has_a_proxy(charts: Helm, everything: Object) -> None:
    objects = charts.render(everything)
    (service,) = [item for item in objects if item["kind"] == "RayService"]
    assert yaml.safe_load(service["spec"]["serveConfigV2"])["proxy_location"] == "EveryNode"
    for template in pod_templates([service]):
        (container,) = template["spec"]["containers"]
        switches = {item["name"]: item["value"] for item in container["env"] if "value" in item}
        env = {**switches, "PATH": os.environ["PATH"]}
        done = subprocess.run([sys.executable, "-c", SAYS], env=env, check=True, capture_output=True, text=True)
        # Direct ingress without HAProxy puts one proxy on the head, whatever the configuration asks for.
        assert done.stdout.split() == ["False", "False"]
