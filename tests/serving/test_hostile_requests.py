"""Whatever is sent, the answer is a document and never a 500."""

import json

import httpx
import pytest
from example_budget import examples
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.conftest import URL

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
numbers = st.floats() | st.integers(-(10**30), 10**30) | st.none() | st.booleans()
column = st.lists(numbers, max_size=6)
series = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=5) | junk,
        "t": column | junk,
        "value": column | junk,
        "in_tok": column,
        "out_tok": column,
        "tenants": st.dictionaries(st.text(max_size=3), column, max_size=2) | junk,
        "pool": junk,
        "gpus": junk,
        "min_gpus": numbers,
    },
)
near = st.fixed_dictionaries(
    {"series": st.lists(series | junk, max_size=3)},
    optional={
        "unit": junk,
        "capacity_per_gpu": numbers,
        "horizons_s": column | junk,
        "quantiles": column | junk,
        "now_s": numbers,
    },
)
plausible = st.builds(
    lambda start, step, values, more: {
        "series": [{"name": "chat", "t": [start + step * i for i in range(len(values))], "value": values}],
        **more,
    },
    st.floats(-1e12, 1e12),
    st.floats(-10, 1e6),
    st.lists(st.none() | st.floats(0, 1e16), min_size=1, max_size=30),
    st.fixed_dictionaries({}, optional={"capacity_per_gpu": st.floats(1e-300, 1e15), "now_s": st.floats(-1e12, 1e12)}),
)
tensors = st.fixed_dictionaries(
    {
        "inputs": st.lists(
            st.fixed_dictionaries(
                {
                    "name": st.sampled_from(["value", "step_s", "start_s", "horizons_s", "quantiles", "?"]),
                    "shape": st.lists(st.integers(-1, 4), max_size=3),
                    "datatype": st.sampled_from(["FP64", "INT64", "BYTES"]),
                    "data": column | st.lists(column, max_size=3),
                }
            )
            | junk,
            max_size=4,
        )
    },
)
calm = settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))


async def sent(
    application: FastAPI, path: str, content: bytes, headers: dict[str, bytes] | None = None
) -> httpx.Response:
    transport = httpx.ASGITransport(application, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL) as http:
        return await http.post(path, content=content, headers={"content-type": b"application/json", **(headers or {})})


def is_an_answer(reply: httpx.Response) -> None:
    document = json.loads(reply.content)
    assert reply.status_code in (200, 400, 413, 415, 422), document
    if reply.status_code != 200:
        assert document["status"] == reply.status_code
        assert len(reply.content) < 20_000


@calm
@given(body=near | plausible | junk)
async def test_any_json_gets_an_answer(application: FastAPI, body: object) -> None:
    is_an_answer(await sent(application, "/v1/demand", json.dumps(body).encode()))


@calm
@given(content=st.binary(max_size=200))
async def test_any_bytes_get_an_answer(application: FastAPI, content: bytes) -> None:
    is_an_answer(await sent(application, "/v1/demand", content))


@calm
@given(body=tensors | junk)
async def test_any_tensors_get_an_answer(application: FastAPI, body: object) -> None:
    is_an_answer(await sent(application, "/v2/models/demand/infer", json.dumps(body).encode()))


@calm
@given(text=st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=30))
async def test_any_header_gets_an_answer(application: FastAPI, text: str) -> None:
    body = json.dumps({"series": [{"name": "a", "t": [0], "value": [1]}]}).encode()
    for name in ("x-kopt-deadline-ms", "content-type", "content-encoding"):
        is_an_answer(await sent(application, "/v1/demand", body, {name: text.encode("latin-1")}))


@pytest.mark.parametrize("item", ["true", '"x"', "[1]", "-1", "1e400"])
async def test_a_million_wrong_items_give_a_short_answer(application: FastAPI, item: str) -> None:
    items = ",".join([item] * 1_000_000)
    text = f'{{"series":[{{"name":"a","t":[{items}],"value":[1]}}]}}'
    is_an_answer(await sent(application, "/v1/demand", text.encode()))
    many = ",".join(['{"name":""}'] * 300_000)
    is_an_answer(await sent(application, "/v1/demand", f'{{"series":[{many}]}}'.encode()))
