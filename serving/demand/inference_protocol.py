"""The Open Inference Protocol v2 (KServe, Triton and others) over the demand predictor.

One model, ``demand``. Tensors: ``value`` FP64 [series, points] with null as a gap, ``step_s`` INT64 [1], and optionally
``horizons_s`` INT64 [h], ``quantiles`` FP64 [q] and ``start_s`` FP64 [1]. Out: ``demand`` FP64 [series, h, q],
``fallback`` BOOL [series], and the two lists. Source: github.com/kserve/open-inference-protocol, inference_rest.md.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from kopt.serving.contract.common import DEFAULT_HORIZONS_S, DEFAULT_QUANTILES, MAX_POINTS, MAX_SERIES
from kopt.serving.contract.demand_answers import DemandForecast
from kopt.serving.contract.schemas import DEMAND_REQUEST, DemandRequest, ProblemOut
from kopt.serving.demand.service import DemandService
from kopt.serving.http.auth import caller_of
from kopt.serving.http.limits import deadline_of, read_json
from kopt.serving.http.problems import Problem, from_validation, invalid
from kopt.serving.http.routing import body_of

MODEL = "demand"
_INPUTS: dict[str, tuple[str, list[int]]] = {
    "value": ("FP64", [-1, -1]),
    "step_s": ("INT64", [1]),
    "start_s": ("FP64", [1]),
    "horizons_s": ("INT64", [-1]),
    "quantiles": ("FP64", [-1]),
}
_OUTPUTS: dict[str, tuple[str, list[int]]] = {
    "demand": ("FP64", [-1, -1, -1]),
    "fallback": ("BOOL", [-1]),
    "horizons_s": ("INT64", [-1]),
    "quantiles": ("FP64", [-1]),
}
Number = float | None
_PROBLEMS: dict[int | str, dict[str, Any]] = {404: {"model": ProblemOut}, 422: {"model": ProblemOut}}


class TensorIn(BaseModel):
    # Unknown members are allowed here: the protocol says that clients may send parameters.
    model_config = ConfigDict(strict=True, frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=64)]
    shape: Annotated[list[Annotated[int, Field(ge=0, le=10**7)]], Field(min_length=1, max_length=2)]
    datatype: Literal["FP64", "FP32", "INT64", "INT32"]
    data: Annotated[
        list[Number | Annotated[list[Number], Field(fail_fast=True)]],
        Field(max_length=MAX_SERIES * MAX_POINTS, fail_fast=True),
    ]


class InferRequest(BaseModel):
    """``$inference_request`` of the protocol, without binary data."""

    model_config = ConfigDict(strict=True, frozen=True)

    id: Annotated[str, Field(max_length=256)] | None = None
    inputs: Annotated[list[TensorIn], Field(min_length=1, max_length=len(_INPUTS))]


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class TensorOut(BaseModel):
    name: str
    datatype: str
    shape: list[int]
    data: list[float | int | bool]


class InferResponse(BaseModel):
    id: str | None = None
    model_name: str
    model_version: str
    outputs: list[TensorOut]


_INFER = TypeAdapter(InferRequest)


def routes(app: FastAPI, service: Callable[[], DemandService]) -> None:
    """Add ``/v2`` to the application."""
    _server(app, service)
    _model(app, service)


def _server(app: FastAPI, service: Callable[[], DemandService]) -> None:
    @app.get("/v2", response_model=ServerMetadata, tags=["v2"])
    async def server() -> Response:
        """Server metadata."""
        return _json({"name": "kopt", "version": "1", "extensions": []})

    @app.get("/v2/health/live", tags=["v2"])
    async def live() -> Response:
        """The process answers."""
        return _json({"live": True})

    @app.get("/v2/health/ready", tags=["v2"])
    async def ready() -> Response:
        """A model answers."""
        return _readiness(service())


def _model(app: FastAPI, service: Callable[[], DemandService]) -> None:
    @app.get("/v2/models/{name}", response_model=ModelMetadata, responses=_PROBLEMS, tags=["v2"])
    async def metadata(name: str) -> Response:
        """Names, types and shapes of the tensors."""
        _require(name)
        version = service().slot.version
        return _json(
            {
                "name": MODEL,
                "versions": [version.version] if version else [],
                "platform": "kopt",
                "inputs": _listed(_INPUTS),
                "outputs": _listed(_OUTPUTS),
            }
        )

    @app.get("/v2/models/{name}/ready", responses=_PROBLEMS, tags=["v2"])
    async def model_ready(name: str) -> Response:
        """The model answers."""
        _require(name)
        return _readiness(service())

    @app.post(
        "/v2/models/{name}/infer",
        response_model=InferResponse,
        responses=_PROBLEMS,
        tags=["v2"],
        openapi_extra=body_of(InferRequest),
    )
    async def infer(name: str, request: Request) -> Response:
        """Histories in, quantiles out."""
        _require(name)
        content = await read_json(request)
        try:
            infer_request = _INFER.validate_json(content)
        except ValidationError as error:
            raise from_validation(error) from None
        demand = _demand_request(infer_request)
        forecast = await service().forecast(demand, deadline_of(request), caller_of(request))
        return _json(_outputs(infer_request, demand, forecast))


def _require(name: str) -> None:
    if name != MODEL:
        raise Problem(404, f"There is no model {name[:64]!r}; there is {MODEL!r}.")


def _readiness(service: DemandService) -> Response:
    ready = service.slot.current is not None
    return _json({"ready": ready}, 200 if ready else 503)


def _listed(tensors: dict[str, tuple[str, list[int]]]) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": kind, "shape": shape} for name, (kind, shape) in tensors.items()]


def _demand_request(infer_request: InferRequest) -> DemandRequest:
    tensors = {tensor.name: (index, tensor) for index, tensor in enumerate(infer_request.inputs)}
    for name, (index, _) in tensors.items():
        if name not in _INPUTS:
            raise invalid(f"inputs.{index}.name", f"there is no input {name[:64]!r}; there are {', '.join(_INPUTS)}")
    if len(tensors) != len(infer_request.inputs):
        raise invalid("inputs", "an input occurs twice")
    for name in ("value", "step_s"):
        if name not in tensors:
            raise invalid("inputs", f"the input {name!r} is missing")
    series, points = _shape(*tensors["value"])
    flat = _flat(*tensors["value"])
    step_s = _only(*tensors["step_s"])
    start_s = _only(*tensors["start_s"]) if "start_s" in tensors else 0.0
    if not 1 <= step_s <= 86_400 or step_s != int(step_s):
        raise invalid(f"inputs.{tensors['step_s'][0]}.data.0", "a step is a whole number of seconds from 1 to 86400")
    times = [start_s + i * step_s for i in range(points)]
    document = {
        "series": [
            {"name": f"series-{i}", "t": times, "value": flat[i * points : (i + 1) * points]} for i in range(series)
        ],
        "horizons_s": _whole(*tensors["horizons_s"]) if "horizons_s" in tensors else list(DEFAULT_HORIZONS_S),
        "quantiles": _flat(*tensors["quantiles"]) if "quantiles" in tensors else list(DEFAULT_QUANTILES),
    }
    try:
        return DEMAND_REQUEST.validate_python(document)
    except ValidationError as error:
        raise from_validation(error, ("inputs",)) from None


def _shape(index: int, tensor: TensorIn) -> tuple[int, int]:
    series, points = (1, tensor.shape[0]) if len(tensor.shape) == 1 else (tensor.shape[0], tensor.shape[1])
    if not 1 <= series <= MAX_SERIES or not 1 <= points <= MAX_POINTS:
        raise invalid(f"inputs.{index}.shape", f"1 to {MAX_SERIES} series of 1 to {MAX_POINTS} points are taken")
    return series, points


def _flat(index: int, tensor: TensorIn) -> list[float | None]:
    """The data row by row; the protocol allows nested and flat."""
    flat: list[float | None] = []
    for item in tensor.data:
        flat.extend(item) if isinstance(item, list) else flat.append(item)
    size = tensor.shape[0] * (tensor.shape[1] if len(tensor.shape) == 2 else 1)
    if len(flat) != size:
        raise invalid(f"inputs.{index}.data", f"has {len(flat)} items, its shape asks for {size}")
    return flat


def _only(index: int, tensor: TensorIn) -> float:
    flat = _flat(index, tensor)
    number = flat[0] if len(flat) == 1 else None
    if number is None or number != number or abs(number) > 1e12:
        raise invalid(f"inputs.{index}.data", "must hold exactly one number")
    return number


def _whole(index: int, tensor: TensorIn) -> list[int]:
    flat = _flat(index, tensor)
    if any(number is None or not abs(number) < 1e9 or number != int(number) for number in flat):
        raise invalid(f"inputs.{index}.data", "must hold whole numbers")
    return [int(number) for number in flat if number is not None]


def _outputs(infer_request: InferRequest, demand: DemandRequest, forecast: DemandForecast) -> dict[str, Any]:
    for index, series_forecast in enumerate(forecast.series):
        refused = [h.demand for h in series_forecast.horizons if h.demand.refused]
        if refused:
            raise invalid(f"inputs.value.{index}", refused[0].reasons[0].message)
    series, horizons, quantiles = len(forecast.series), list(demand.horizons_s), list(demand.quantiles)
    flat = [
        h.demand.quantiles[q]
        for series_forecast in forecast.series
        for h in series_forecast.horizons
        for q in quantiles
    ]
    outputs = [
        _tensor("demand", [series, len(horizons), len(quantiles)], flat),
        _tensor("fallback", [series], [series_forecast.fallback for series_forecast in forecast.series]),
        _tensor("horizons_s", [len(horizons)], horizons),
        _tensor("quantiles", [len(quantiles)], quantiles),
    ]
    named = {"id": infer_request.id} if infer_request.id is not None else {}
    return {**named, "model_name": MODEL, "model_version": forecast.model.version, "outputs": outputs}


def _tensor(name: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": _OUTPUTS[name][0], "shape": shape, "data": data}


def _json(document: dict[str, Any], status: int = 200) -> Response:
    return Response(to_json(document), status, media_type="application/json")
