"""Runs of jobs from users' own MLflow: read only, over its REST API, in pages, with a bearer token.

- A run's type is its experiment and what it ran (tag ``mlflow.source.name``): names of runs are drawn at random.
- Its GPUs are a parameter or a tag of one of the names that are asked for; runs that say nothing of them take the
  number that is given for all, or are left out and counted.
- What finished or failed has ended. What was killed was interrupted. Of what MLflow still calls running but was silent
  for long, all that is known is that it ran until its last sign of life: it is interrupted there, not forgotten.
- Runs below another run are parts of it (folds, trials) and no jobs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from kopt.core.redaction import redact
from kopt.core.untrusted import UnreadableError, decode_mapping
from kopt.core.workload.run_time import JobKind, JobRun, RunTimeError

GPU_NAMES = ("gpus", "num_gpus", "n_gpus", "ngpus", "world_size", "devices", "num_devices", "trainer.devices")
"""Parameters and tags that say on how many GPUs a run was, the first that is there."""
QUEUE_NAMES = ("queue", "kueue.x-k8s.io/queue-name")
MOST_RUNS = 100_000
SILENT_S = 86_400.0
_PAGE = 500
_MOST_EXPERIMENTS = 5_000
_AT_ONCE = 100
"""Experiments that one query names."""
_MOST_BYTES = 64 << 20
_TIMEOUT_S = 60.0
_MOST_CHARACTERS = 253
_MOST_GPUS = 1_000_000
_ENDED, _KILLED = ("FINISHED", "FAILED"), "KILLED"
_PARENT, _SOURCE, _USER = "mlflow.parentRunId", "mlflow.source.name", "mlflow.user"
_WHOLE = re.compile(r"\d{1,7}(\.0)?")


class MlflowRunsError(Exception):
    """The server does not answer, refuses, or answers something else than MLflow does."""


@dataclass(frozen=True)
class MlflowQuery:
    """``since_s``: runs that began earlier are left out. ``default_gpus`` are those of runs that do not say, 0: left
    out. ``default_queue`` is that of runs without one; by default their experiment."""

    since_s: float = 0.0
    gpu_names: Sequence[str] = GPU_NAMES
    default_gpus: int = 0
    default_queue: str = ""
    silent_s: float = SILENT_S
    most: int = MOST_RUNS


@dataclass(frozen=True)
class MlflowRuns:
    """Runs by their start. ``without_gpus`` were left out, as nothing says on how many they ran; ``unreadable`` are
    runs whose times contradict each other; ``cut``: there were more than ``most``, the newest were read."""

    runs: tuple[JobRun, ...]
    without_gpus: int = 0
    unreadable: int = 0
    nested: int = 0
    cut: bool = False


class MlflowReader:
    """The server at ``url``. ``token`` is sent as a bearer token and never shown; ``authority`` is a file with the
    certificates that the server's has to be signed by.

    Raises MlflowRunsError for an address that is none of http or https.
    """

    def __init__(self, url: str, *, token: str = "", authority: Path | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise MlflowRunsError("that is no address of an MLflow server; give http://… or https://…")
        self._address = redact(f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        # Redirects are not followed: the token is for this host.
        self._http = httpx.Client(
            base_url=url.rstrip("/"), headers=headers, timeout=_TIMEOUT_S, verify=str(authority) if authority else True
        )

    def __enter__(self) -> "MlflowReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def read(self, query: MlflowQuery, now_s: float) -> MlflowRuns:
        """All runs that the token may see. Raises MlflowRunsError."""
        experiments = self._experiments()
        names = list(experiments)
        documents: list[Mapping[str, Any]] = []
        cut = False
        for at in range(0, len(names), _AT_ONCE):
            for run in self._runs(names[at : at + _AT_ONCE], query.since_s):
                if len(documents) == query.most:
                    cut = True
                    break
                documents.append(run)
        return _read(documents, experiments, query, now_s, cut=cut)

    def _experiments(self) -> dict[str, str]:
        """Names by id."""
        result: dict[str, str] = {}
        for document in self._pages("experiments/search", {"max_results": _PAGE}):
            for item in _listed(document, "experiments"):
                result[_text(item, "experiment_id")] = _text(item, "name")
            if len(result) > _MOST_EXPERIMENTS:
                raise MlflowRunsError(f"{self._address} has more than {_MOST_EXPERIMENTS:,} experiments")
        return result

    def _runs(self, experiments: Sequence[str], since_s: float) -> Iterator[Mapping[str, Any]]:
        """The newest first."""
        body = {
            "experiment_ids": list(experiments),
            "filter": f"attributes.start_time >= {int(1000 * since_s)}",
            "order_by": ["attributes.start_time DESC"],
            "max_results": _PAGE,
        }
        for document in self._pages("runs/search", body):
            yield from _listed(document, "runs")

    def _pages(self, path: str, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        token, visited = "", set()
        while token not in visited:
            visited.add(token)
            document = self._post(path, dict(body) | ({"page_token": token} if token else {}))
            yield document
            token = _text(document, "next_page_token")
            if not token:
                return
        raise MlflowRunsError(f"{self._address} gives the same page again and again")

    def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            with self._http.stream("POST", f"/api/2.0/mlflow/{path}", json=body) as answer:
                content = self._bounded(answer)
                if answer.status_code in (401, 403):
                    raise MlflowRunsError(f"{self._address} refuses ({answer.status_code}); give a token that may read")
                if answer.status_code != httpx.codes.OK:
                    raise MlflowRunsError(f"{self._address} answers {answer.status_code} to {path}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise MlflowRunsError(f"{self._address} cannot be read: {type(error).__name__}") from error
        try:
            return decode_mapping(content.decode("utf-8", errors="replace"), longest_chars=_MOST_BYTES)
        except UnreadableError as error:
            raise MlflowRunsError(f"{self._address} does not answer like MLflow: {error}") from error

    def _bounded(self, answer: httpx.Response) -> bytes:
        content = bytearray()
        for chunk in answer.iter_bytes():
            content += chunk
            if len(content) > _MOST_BYTES:
                raise MlflowRunsError(f"{self._address} answers with more than {_MOST_BYTES >> 20} MiB")
        return bytes(content)


def _read(
    documents: Sequence[Mapping[str, Any]],
    experiments: Mapping[str, str],
    query: MlflowQuery,
    now_s: float,
    *,
    cut: bool,
) -> MlflowRuns:
    runs: dict[str, JobRun] = {}
    without = unreadable = nested = 0
    for document in documents:
        values = _values(document)
        if values.get(_PARENT):
            nested += 1
            continue
        gpus = _gpus(values, query)
        if not gpus:
            without += 1
            continue
        try:
            run = _run(document, values, experiments, gpus, query, now_s)
        except (RunTimeError, ValueError):
            unreadable += 1
            continue
        runs[run.job] = run
    ordered = tuple(sorted(runs.values(), key=lambda run: (run.started_s, run.job)))
    return MlflowRuns(ordered, without, unreadable, nested, cut)


def _run(
    document: Mapping[str, Any],
    values: Mapping[str, str],
    experiments: Mapping[str, str],
    gpus: int,
    query: MlflowQuery,
    now_s: float,
) -> JobRun:
    """Raises RunTimeError or ValueError for times that cannot be."""
    info = _mapping(document, "info")
    experiment = experiments.get(_text(info, "experiment_id"), "")
    source = values.get(_SOURCE, "").replace("\\", "/").rpartition("/")[2]
    name = f"{experiment}:{source}" if source else experiment
    queue = next((values[key] for key in QUEUE_NAMES if values.get(key)), query.default_queue or experiment)
    user = values.get(_USER) or _text(info, "user_id")
    kind = JobKind(queue[:_MOST_CHARACTERS], gpus, name[:_MOST_CHARACTERS], user[:_MOST_CHARACTERS])
    job, status = _text(info, "run_id"), _text(info, "status")
    started_s, ended_s = _seconds(info, "start_time"), _seconds(info, "end_time")
    if not job or started_s is None:
        raise ValueError("a run without an id or a start")
    if status in _ENDED and ended_s is not None:
        return JobRun(job, kind, started_s, ended_s)
    if status == _KILLED and ended_s is not None:
        return JobRun(job, kind, started_s, ended_s, interrupted=True)
    last_sign_s = max([started_s, *_logged_s(document)])
    if now_s - last_sign_s <= query.silent_s:
        return JobRun(job, kind, started_s, None)
    if last_sign_s <= started_s:
        raise ValueError("nothing is known of it but its start, long ago")
    return JobRun(job, kind, started_s, min(last_sign_s, now_s), interrupted=True)


def _logged_s(document: Mapping[str, Any]) -> Iterator[float]:
    """When its metrics were last logged."""
    for item in _listed(_mapping(document, "data"), "metrics"):
        if (at_s := _seconds(item, "timestamp")) is not None:
            yield at_s


def _values(document: Mapping[str, Any]) -> dict[str, str]:
    """Tags, and parameters where both have a name."""
    data = _mapping(document, "data")
    return {_text(item, "key"): _text(item, "value") for part in ("tags", "params") for item in _listed(data, part)}


def _gpus(values: Mapping[str, str], query: MlflowQuery) -> int:
    for name in query.gpu_names:
        text = values.get(name, "").strip()
        if _WHOLE.fullmatch(text) and 0 < int(float(text)) <= _MOST_GPUS:
            return int(float(text))
    return query.default_gpus


def _seconds(item: Mapping[str, Any], name: str) -> float | None:
    value = item.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:15])
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    return value / 1000


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    return value if isinstance(value, str) else ""


def _mapping(item: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = item.get(name)
    return value if isinstance(value, Mapping) else {}


def _listed(item: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = item.get(name)
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
