"""What the API server takes as a LendingPool the controller can read: a pool that it cannot read is looked after by
nobody, with what it has lent."""

import pytest
from controlplane.api import Refused
from controlplane.plane import ControlPlane

from kopt.cluster.objects.custom.lending_pool import pool_of

from .conftest import POOL, Object

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def pool(name: str, **spec: object) -> Object:
    service = {"name": "chat", "namespace": "n", "selector": {"matchLabels": {"app": "chat"}}, "capacityPerGpu": 1}
    return {
        "apiVersion": POOL[0],
        "kind": POOL[1],
        "metadata": {"name": name},
        "spec": {"gpus": 4, "services": [service], **spec},
    }


@pytest.mark.parametrize("lead", ["0s", "000m", "3h", "7201s", "121m", "1d", "9999h"])
def test_a_lead_time_that_no_forecast_covers_is_refused(plane: ControlPlane, lead: str) -> None:
    with pytest.raises(Refused, match="leadTime"):
        plane.api.create(pool("schema-no-lead", leadTime=lead))


@pytest.mark.parametrize("lead", ["1s", "090s", "7200s", "120m", "2h"])
def test_one_that_they_cover_is_read(plane: ControlPlane, lead: str) -> None:
    made = plane.api.create(pool("schema-lead", leadTime=lead))
    plane.api.delete(*POOL, "schema-lead", "")
    assert 0 < (pool_of(made).lead_time_s or 0) <= 7200
