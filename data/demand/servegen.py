"""ServeGen's production traces: request rates and token lengths per client of a model.

Layout of github.com/alibaba/ServeGen (Apache-2.0; arXiv:2505.09999), ``data/<category>/<model>/``:
``chunk-N-trace.csv`` without a header, one line per window: start of the window (s), requests per second, coefficient
of variation, arrival pattern and its two arguments; ``chunk-N-dataset.json``: per window of hours, the distributions
of ``input_tokens`` and ``output_tokens`` as the text of a Python dictionary (tokens: probability).
"""

import csv
import json
import math
import re
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path

import numpy as np

from kopt.data.demand.grid import on_grid
from kopt.data.demand.table import Array, DemandDataError, DemandSeries

MAX_CLIENTS = 100_000
MAX_FILE_BYTES = 256 << 20
_TRACE = re.compile(r"chunk-(\d{1,9})-trace\.csv")
_NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_PAIR = re.compile(rf"({_NUMBER})\s*:\s*({_NUMBER})")
_TEXT = re.compile(rf"\{{\s*(?:{_NUMBER}\s*:\s*{_NUMBER}\s*,?\s*)*\}}")


def is_servegen(path: Path) -> bool:
    """A folder with ``chunk-N-trace.csv`` files, or one such file."""
    if path.is_dir():
        return any(_TRACE.fullmatch(file.name) for file in path.glob("chunk-*-trace.csv"))
    return bool(_TRACE.fullmatch(path.name)) and path.is_file()


def read_servegen(path: Path) -> list[DemandSeries]:
    """``<model>_total`` with its clients as tenants, then every ``<model>_clientN``; a single file gives its client.

    The folder's name is the model. Requests per window are rate x window. A window without a rate is a gap, and so
    is one in which no client of several has a request: a model in production is not unused for ten minutes.

    Raises:
        DemandDataError: naming the file's series and the row.
    """
    folder = path if path.is_dir() else path.parent
    files = sorted(folder.glob("chunk-*-trace.csv")) if path.is_dir() else [path]
    numbered = sorted((int(match[1]), file) for file in files if (match := _TRACE.fullmatch(file.name)))
    if len(numbered) > MAX_CLIENTS:
        raise DemandDataError(f"{folder} has more than {MAX_CLIENTS} clients")
    model = folder.resolve().name
    clients = [_client(f"{model}_client{number}", file) for number, file in numbered]
    return clients if path.is_file() else _with_total(model, clients)


def _client(name: str, file: Path) -> DemandSeries:
    t, rate = _windows(name, file)
    grid = on_grid(name, t, {"rate": rate})
    value = grid.columns["rate"] * grid.step_s
    means = _token_means(name, file.with_name(file.name.replace("-trace.csv", "-dataset.json")))
    # The newest distribution at or before a window holds for it, as in ServeGen's own loader.
    starts = sorted(means)
    newest = [bisect_right(starts, grid.start_s + i * grid.step_s) - 1 for i in range(len(value))]
    tokens = np.array([means[starts[k]] if k >= 0 else (math.nan, math.nan) for k in newest]).T * value
    in_tokens, out_tokens = (column if np.isfinite(column).any() else None for column in tokens)
    return DemandSeries(name, grid.start_s, grid.step_s, value, in_tokens=in_tokens, out_tokens=out_tokens)


def _windows(name: str, file: Path) -> tuple[Array, Array]:
    """Start (s) and rate (1/s) of every window, each of shape (m,)."""
    t, rates = [], []
    try:
        with _bounded(name, file).open(newline="", encoding="utf-8-sig") as text:
            for row, cells in enumerate(csv.reader(text)):
                if len(cells) < 2:
                    raise DemandDataError(f"{file.name}: expected start,rate,cv,…", series=name, row=row)
                t.append(_number(name, row, cells[0], "start of the window"))
                rates.append(_number(name, row, cells[1], "rate") if cells[1].strip() else math.nan)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DemandDataError(f"{file.name} is not a readable CSV file: {error}", series=name) from error
    return np.array(t), np.array(rates)


def _number(name: str, row: int, text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise DemandDataError(f"{what} is {text[:40]!r}, not a number", series=name, row=row) from error


def _token_means(name: str, file: Path) -> dict[float, tuple[float, float]]:
    """Mean input and output tokens per request by start of the window; empty where the file is absent."""
    if not file.is_file():
        return {}
    try:
        windows = json.loads(_bounded(name, file).read_bytes())
        return {
            float(start): (_mean(name, fields.get("input_tokens")), _mean(name, fields.get("output_tokens")))
            for start, fields in windows.items()
        }
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, DemandDataError):
            raise
        raise DemandDataError(f"{file.name} is not ServeGen's JSON: {error}", series=name) from error


def _mean(name: str, text: object) -> float:
    """Mean of a distribution written as ``{tokens: probability, …}``; NaN where it is empty or absent."""
    if text is None:
        return math.nan
    if not isinstance(text, str) or not _TEXT.fullmatch(text):
        raise DemandDataError(f"tokens are not written as {{tokens: probability}}: {str(text)[:40]!r}", series=name)
    histogram = np.array([(float(tokens), float(share)) for tokens, share in _PAIR.findall(text)]).reshape(-1, 2)
    total = histogram[:, 1].sum()
    return float(histogram[:, 0] @ histogram[:, 1] / total) if total > 0 else math.nan


def _bounded(name: str, file: Path) -> Path:
    if file.stat().st_size > MAX_FILE_BYTES:
        raise DemandDataError(f"{file.name} is larger than {MAX_FILE_BYTES >> 20} MiB", series=name)
    return file


def _with_total(model: str, clients: list[DemandSeries]) -> list[DemandSeries]:
    first = clients[0]
    for client in clients:
        if (client.start_s, client.step_s, len(client)) != (first.start_s, first.step_s, len(first)):
            raise DemandDataError(f"its windows are not those of {first.name}", series=client.name)
    values = np.array([client.value for client in clients])
    if len(clients) > 1:
        values[:, (np.nan_to_num(values) == 0).all(0)] = np.nan
        clients = [_masked(client, value) for client, value in zip(clients, values, strict=True)]
    missing = np.isnan(values).all(0)
    total = DemandSeries(
        f"{model}_total",
        first.start_s,
        first.step_s,
        np.where(missing, np.nan, np.nansum(values, 0)),
        in_tokens=_sum_finite([client.in_tokens for client in clients], values),
        out_tokens=_sum_finite([client.out_tokens for client in clients], values),
        tenants={client.name.removeprefix(f"{model}_"): client.value for client in clients},
    )
    return [total, *clients]


def _masked(client: DemandSeries, value: Array) -> DemandSeries:
    """The client with ``value``, and tokens only where that is known."""
    tokens = [
        None if c is None else np.where(np.isnan(value), np.nan, c) for c in (client.in_tokens, client.out_tokens)
    ]
    return replace(client, value=value, in_tokens=tokens[0], out_tokens=tokens[1])


def _sum_finite(columns: list[Array | None], requests: Array) -> Array | None:
    """Tokens of the model, scaled up from the clients whose token lengths are known, shape (n,)."""
    tokens = np.array([np.full(requests.shape[1], np.nan) if column is None else column for column in columns])
    is_finite = np.isfinite(tokens)
    if not is_finite.any():
        return None
    finite_requests = np.where(is_finite, requests, 0.0).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled: Array = np.where(is_finite, tokens, 0.0).sum(0) * (np.nansum(requests, 0) / finite_requests)
    return np.where(finite_requests > 0, scaled, np.nan)
