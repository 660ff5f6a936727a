"""The Open Inference Protocol: metadata, readiness, inference, refusals."""

from typing import Any

import httpx
import pytest

from tests.serving.conftest import MemorySource


def tensor(name: str, data: list[Any], shape: list[int] | None = None, kind: str = "FP64") -> dict[str, Any]:
    return {"name": name, "shape": shape or [len(data)], "datatype": kind, "data": data}


STEP = tensor("step_s", [300], kind="INT64")


async def infer(http: httpx.AsyncClient, *inputs: dict[str, Any], **more: Any) -> httpx.Response:
    return await http.post("/v2/models/demand/infer", json={"inputs": list(inputs), **more})


async def test_metadata_names_the_tensors_that_inference_takes_and_gives(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v2")).json()["name"] == "kopt"
    metadata = (await http.get("/v2/models/demand")).json()
    assert metadata["versions"] == ["1"]
    shapes = {one["name"]: one["shape"] for one in metadata["inputs"] + metadata["outputs"]}
    assert shapes["value"] == [-1, -1]
    assert shapes["demand"] == [-1, -1, -1]
    reply = (await infer(http, tensor("value", [1.0, 2.0, 3.0]), STEP)).json()
    assert {one["name"] for one in reply["outputs"]} == {one["name"] for one in metadata["outputs"]}


async def test_histories_in_quantiles_out_nested_or_flat(http: httpx.AsyncClient) -> None:
    asked = [tensor("horizons_s", [300, 600], kind="INT64"), tensor("quantiles", [0.5, 0.99]), STEP]
    flat = await infer(http, tensor("value", [1.0, 2.0, None, 10.0], [2, 2]), *asked, id="a7")
    nested = await infer(http, tensor("value", [[1.0, 2.0], [None, 10.0]], [2, 2]), *asked, id="a7")
    assert flat.json() == nested.json()
    document = flat.json()
    assert (document["id"], document["model_name"], document["model_version"]) == ("a7", "demand", "1")
    demand = document["outputs"][0]
    assert demand["shape"] == [2, 2, 2]
    assert demand["data"] == pytest.approx([2, 2.98, 2, 2.98, 10, 14.9, 10, 14.9])
    assert document["outputs"][1]["data"] == [False, False]


async def test_readiness_follows_the_model(http: httpx.AsyncClient, source: MemorySource) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/demand/ready"):
        assert (await http.get(path)).status_code == 200
    assert (await http.get("/v2/models/other")).status_code == 404
    assert (await http.post("/v2/models/other/infer", json={"inputs": []})).status_code == 404


@pytest.mark.parametrize(
    ("inputs", "place"),
    [
        ([tensor("value", [1.0])], "inputs"),
        ([STEP], "inputs"),
        ([tensor("value", [1.0], [2]), STEP], "inputs.0.data"),
        ([tensor("value", [1.0], [0]), STEP], "inputs.0.shape"),
        ([tensor("value", [1.0]), STEP, STEP], "inputs"),
        ([tensor("value", [1.0]), tensor("step_s", [None])], "inputs.1.data"),
        ([tensor("value", [1.0]), tensor("step_s", [0.5])], "inputs.1.data.0"),
        ([tensor("value", [1.0]), tensor("what", [1])], "inputs.1.name"),
        ([tensor("value", [1.0]), STEP, tensor("horizons_s", [1e300])], "inputs.2.data"),
        ([tensor("value", [1.0]), STEP, tensor("horizons_s", [1])], "inputs.horizons_s.0"),
        ([tensor("value", [1.0], kind="BYTES"), STEP], "inputs.0.datatype"),
        ([tensor("value", [-1.0]), STEP], "series.0.value.0"),
        ([tensor("value", [None]), STEP], "inputs.value.0"),
    ],
)
async def test_wrong_tensors_are_refused_with_their_place(
    http: httpx.AsyncClient, inputs: list[Any], place: str
) -> None:
    reply = await infer(http, *inputs)
    assert reply.status_code == 422, reply.text
    assert reply.json()["errors"][0]["field"] == place
    assert reply.json()["error"]
