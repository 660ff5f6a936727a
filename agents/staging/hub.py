"""Repositories of the Hugging Face hub, or of a mirror (HF_ENDPOINT), by its HTTP interface.

https://huggingface.co/docs/hub/api: ``/api/models/NAME/revision/REV`` gives the commit, ``…/tree/COMMIT`` the files in
pages linked by ``Link``, ``/NAME/resolve/COMMIT/PATH`` a file, mostly by a redirect to where it is kept.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import obstore
from obstore.store import HTTPStore
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from kopt.agents.staging.buckets import options, piece_bytes
from kopt.agents.staging.settings import StageSettings
from kopt.agents.staging.troubles import STORE_ERRORS, changed, of_source, unsecret
from kopt.core.staging.manifest import Checksum, Entry, Source, StagingError, Trouble

_ENDPOINT = "https://huggingface.co"
_BUSY = {429, 500, 502, 503, 504}


class _AskLater(Exception):
    """The hub wants patience."""


class Hub:
    """A model or data set at a commit; what a branch stands for is asked once."""

    whole = False

    def __init__(self, source: Source, settings: StageSettings) -> None:
        self.revision, self.remarks = "", list[str]()
        self._source, self._settings = source, settings
        kind, owner, name, *inside = source.address.split("/")
        self._api, self._inside = f"api/{kind}/{owner}/{name}", "/".join(inside)
        self._files = f"{owner}/{name}" if kind == "models" else f"{kind}/{owner}/{name}"
        self._endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
        token = _token()
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        made = options(settings, plain_http=self._endpoint.startswith("http://"))
        made["client_options"]["default_headers"] = self._headers
        self._store: Any = HTTPStore.from_url(self._endpoint, **made)

    async def entries(self) -> AsyncIterator[Entry]:
        async with httpx.AsyncClient(headers=self._headers, timeout=self._settings.stall_s) as client:
            wanted = quote(self._source.revision or "main", safe="")
            about = await self._get(client, f"{self._endpoint}/{self._api}/revision/{wanted}")
            self.revision = _text(about.json(), "sha")
            url = f"{self._endpoint}/{self._api}/tree/{self.revision}?recursive=true&limit=1000"
            while url:
                answer = await self._get(client, url)
                for item in answer.json():
                    if item.get("type") == "file" and (path := self._relative(_text(item, "path"))):
                        yield self._entry(item, path)
                url = _next(answer, self._endpoint)

    async def read(self, entry: Entry, begin: int, end: int) -> AsyncGenerator[bytes]:
        path = "/".join(part for part in (self._inside, entry.path) if part)
        if self._inside.rpartition("/")[2] == entry.path and self._single:
            path = self._inside
        what = f"{self._source}/{entry.path}"
        try:
            key = f"{self._files}/resolve/{self.revision}/{path}"
            answer = await obstore.get_async(self._store, key, options={"range": (begin, end)})
            if answer.meta["size"] != entry.bytes:
                raise changed(what)
            async for piece in answer.stream(min_chunk_size=piece_bytes(self._settings)):
                yield piece
        except STORE_ERRORS as error:
            raise of_source(error, what, "hf") from error

    _single = False
    """The source is one file of the repository."""

    def _relative(self, path: str) -> str:
        """Below what was asked for; "" for what is not."""
        if path == self._inside:
            self._single = True
            return path.rpartition("/")[2]
        prefix = f"{self._inside}/" if self._inside else ""
        return path[len(prefix) :] if path.startswith(prefix) else ""

    def _entry(self, item: dict[str, Any], path: str) -> Entry:
        kept = item.get("lfs")
        checksum = Checksum("sha256", _text(kept, "oid")) if kept else Checksum("git-sha1", _text(item, "oid"))
        size = (kept or item).get("size")
        if not isinstance(size, int):
            raise StagingError(f"the hub at {self._endpoint} tells no size of {path!r}", Trouble.UNREACHABLE)
        return Entry(path, size, str(checksum), checksum)

    async def _get(self, client: httpx.AsyncClient, url: str) -> httpx.Response:
        patience = AsyncRetrying(
            retry=retry_if_exception_type((_AskLater, httpx.TransportError)),
            reraise=True,
            stop=stop_after_delay(self._settings.retry_s),
            wait=wait_exponential_jitter(0.2, 15),
        )
        try:
            async for attempt in patience:
                with attempt:
                    answer = await client.get(url)
                    if answer.status_code in _BUSY:
                        raise _AskLater(f"{answer.status_code} {answer.reason_phrase}")
            return self._checked(answer)
        except (_AskLater, httpx.TransportError) as error:
            raise of_source(error, str(self._source), "hf") from error

    def _checked(self, answer: httpx.Response) -> httpx.Response:
        if answer.status_code in (401, 403):
            raise StagingError(
                f"{self._source} may not be read, or is not there; set HF_TOKEN to a token that may "
                f"({answer.status_code})",
                Trouble.DENIED,
            )
        if answer.status_code == 404:
            message = f"{self._source} is not at {self._endpoint}; check the name and the revision"
            raise StagingError(message, Trouble.NOT_FOUND)
        try:
            answer.raise_for_status().json()
        except (httpx.HTTPStatusError, ValueError) as error:
            message = f"{self._endpoint} does not answer as the hub does: {unsecret(str(error))[:200]}"
            raise StagingError(message, Trouble.UNREACHABLE) from error
        return answer


def _token() -> str:
    """Where the hub's own client has it; "" for none."""
    if token := os.environ.get("HF_TOKEN"):
        return token.strip()
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    try:
        return Path(os.environ.get("HF_TOKEN_PATH") or home / "token").read_text().strip()
    except OSError:
        return ""


def _next(answer: httpx.Response, endpoint: str) -> str:
    """The next page, on the same server: the token goes nowhere else."""
    url = str(answer.links.get("next", {}).get("url", ""))
    if url and not url.startswith(f"{endpoint}/"):
        # Mirrors may pass the hub's own links on.
        path = httpx.URL(url).raw_path.decode()
        return f"{endpoint}{path}"
    return url


def _text(document: Any, key: str) -> str:
    value = document.get(key) if isinstance(document, dict) else None
    if not isinstance(value, str):
        raise StagingError(f"the hub's answer holds no {key!r}", Trouble.UNREACHABLE)
    return value
