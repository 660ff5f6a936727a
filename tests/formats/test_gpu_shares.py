"""Shares of a GPU in each executor's terms, and read from them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.executor import Executor
from kopt.core.workload.sizing import RequestedGpus
from kopt.formats.gpu_shares import container_memory_mib, share_patch, stated_executor
from kopt.formats.pod_request import requested_executor, requested_gpus

EXECUTORS = [executor for executor in Executor if executor.hands_out]
every_executor = pytest.mark.parametrize("executor", EXECUTORS)


def pod(limits: dict[str, Any], annotations: dict[str, str] | None = None, scheduler: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "log"}, {"name": "main", "resources": {"limits": limits}}]}
    if scheduler:
        spec["schedulerName"] = scheduler
    return {"metadata": {"annotations": annotations or {}}, "spec": spec}


def merged(document: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def asking(executor: Executor, memory_mib: int) -> dict[str, Any]:
    """A pod of a whole GPU after the patch for a share."""
    patch, document = share_patch(executor, memory_mib), pod({"nvidia.com/gpu": "1", "cpu": "4"})
    container = document["spec"]["containers"][1]
    container["resources"] = merged(container["resources"], patch.pop("resources"))
    return dict(merged(document, patch))


@every_executor
@given(memory_mib=st.integers(1, 200_000))
def test_what_is_written_is_read_as_that_much_of_one_gpu(executor: Executor, memory_mib: int) -> None:
    document = asking(executor, memory_mib)
    assert requested_executor(document) is executor
    requested = requested_gpus(document)
    assert (requested.memory_mib, requested.fraction) == (memory_mib, None)
    assert document["spec"]["containers"][1]["resources"]["limits"]["cpu"] == "4"


def test_the_terms_are_those_of_each_project() -> None:
    kai, hami, volcano = (asking(executor, 4000) for executor in (Executor.KAI, Executor.HAMI, Executor.VOLCANO))
    # KAI refuses a whole GPU, or a fraction, beside an amount of memory.
    assert kai["metadata"]["annotations"] == {"gpu-memory": "4000"}
    assert kai["spec"]["containers"][1]["resources"]["limits"] == {"cpu": "4"}
    assert kai["spec"]["schedulerName"] == "kai-scheduler"
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000", "cpu": "4"}
    assert hami["spec"]["containers"][1]["resources"]["limits"] == limits
    assert "schedulerName" not in hami["spec"], "HAMi's webhook writes it"
    limits = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "4000", "cpu": "4"}
    assert volcano["spec"]["containers"][1]["resources"]["limits"] == limits
    assert volcano["spec"]["schedulerName"] == "volcano"


def test_a_fraction_of_kais_gives_way_to_memory() -> None:
    document = pod({}, {"gpu-fraction": "0.5"}, "kai-scheduler")
    assert (requested_executor(document), requested_gpus(document)) == (Executor.KAI, RequestedGpus(None, None, 0.5))
    patch = share_patch(Executor.KAI, 3000)
    assert merged(document["metadata"], patch["metadata"]) == {"annotations": {"gpu-memory": "3000"}}


@pytest.mark.parametrize("executor", [Executor.NONE, Executor.UNKNOWN])
def test_without_an_executor_there_are_no_terms(executor: Executor) -> None:
    with pytest.raises(ValueError, match=executor.value):
        share_patch(executor, 1000)


@every_executor
def test_no_share_is_of_no_memory(executor: Executor) -> None:
    with pytest.raises(ValueError, match="0 MiB"):
        share_patch(executor, 0)


@pytest.mark.parametrize(
    ("document", "executor", "requested"),
    [
        (pod({"nvidia.com/gpu": 1}), Executor.UNKNOWN, RequestedGpus(1)),
        (pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}), Executor.HAMI, RequestedGpus(1, 3000)),
        (pod({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}), Executor.UNKNOWN, RequestedGpus(2)),
        (pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "3Gi"}), Executor.UNKNOWN, RequestedGpus(1)),
        (pod({"nvidia.com/gpumem": 3000}), Executor.UNKNOWN, RequestedGpus()),
        (
            pod({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}),
            Executor.VOLCANO,
            RequestedGpus(None, 3000),
        ),
        (pod({}, {"gpu-memory": "2000"}), Executor.UNKNOWN, RequestedGpus(None, 2000)),
        (pod({}, {"gpu-memory": "2000"}, "kai-scheduler"), Executor.KAI, RequestedGpus(None, 2000)),
        (pod({}, {"gpu-fraction": "1.5"}, "kai-scheduler"), Executor.KAI, RequestedGpus()),
    ],
)
def test_a_request_is_read_in_its_own_terms(
    document: dict[str, Any], executor: Executor, requested: RequestedGpus
) -> None:
    assert (requested_executor(document), requested_gpus(document)) == (executor, requested)


def test_shares_of_several_gpus_are_not_read_as_one() -> None:
    document = pod({}, {"gpu-memory": "2000", "gpu-fraction-num-devices": "3"}, "kai-scheduler")
    assert requested_gpus(document) == RequestedGpus()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["resources", "limits", "nvidia.com/gpu", "nvidia.com/gpumem"]), inner)
        ),
    )
)
def test_whatever_stands_in_a_container_is_read(container: Any) -> None:
    assert container_memory_mib(container) >= 0
    assert stated_executor({}, {"containers": [container]}) in Executor
