"""A Ray whose processes start slowly, as they do on a busy machine, is waited for while they live."""

import importlib
from typing import Any

import pytest

from kopt.serving.base import local_ray


class Gcs:
    """Ray's question for its own node, which is answered from the third time on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.services: Any = importlib.import_module("ray._private.services")
        monkeypatch.setattr(self.services, "get_node", self.get_node)

    def get_node(self, address: str, node: str) -> dict[str, str]:
        self.asked += 1
        if self.asked < 3:
            raise RuntimeError("no such node")
        return {"address": address, "node": node}


def test_a_raylet_that_starts_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gcs = Gcs(monkeypatch)
    monkeypatch.setattr(local_ray, "_raylet_lives", lambda: True)
    with local_ray._longer_start():
        assert gcs.services.get_node("127.0.0.1:1", "ab") == {"address": "127.0.0.1:1", "node": "ab"}
    assert gcs.services.get_node == gcs.get_node, "it is Ray's own again"


@pytest.mark.parametrize(("limit", "cpus"), [(2.0, 2), (1.5, 1), (0.5, 1), (None, 64)])
def test_ray_starts_as_many_workers_as_the_container_may_use(
    limit: float | None, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils: Any = importlib.import_module("ray._private.utils")
    monkeypatch.setattr(utils.multiprocessing, "cpu_count", lambda: 64)
    monkeypatch.setattr(utils, "_get_docker_cpus", lambda: limit)
    assert local_ray._usable_cpus() == cpus


def test_a_raylet_that_died_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gcs = Gcs(monkeypatch)
    with local_ray._longer_start(), pytest.raises(RuntimeError, match="no such node"):
        gcs.services.get_node("127.0.0.1:1", "ab")
    assert gcs.asked == 1
