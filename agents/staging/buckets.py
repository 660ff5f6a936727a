"""Object stores: s3, gs and az, by obstore, which reads credentials where the clouds' own tools do."""

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from datetime import timedelta
from typing import Any, cast

import obstore

from kopt.agents.staging.settings import StageSettings
from kopt.agents.staging.troubles import MISSING_ERRORS, STORE_ERRORS, changed, of_source
from kopt.core.staging.manifest import Checksum, Entry, Source, SourceKind

_PAGE = 1000
_LARGEST_PIECE, _SMALLEST_PIECE = 4 << 20, 64 << 10
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
_QUOTE = '"'
_PREFIXES = {SourceKind.S3: "AWS", SourceKind.GCS: "GOOGLE", SourceKind.AZURE: "AZURE"}


def options(settings: StageSettings, *, plain_http: bool) -> dict[str, Any]:
    """What every store of obstore is made with: its own retries, and no limit on how long a body may take."""
    return {
        "client_options": {
            "allow_http": plain_http,
            "connect_timeout": "15s",
            "timeout": "7d",
            "read_timeout": f"{settings.stall_s:g}s",
        },
        "retry_config": {
            "max_retries": 1000,
            "retry_timeout": timedelta(seconds=settings.retry_s),
            "backoff": {"init_backoff": timedelta(milliseconds=100), "base": 2, "max_backoff": timedelta(seconds=15)},
        },
    }


def _may_be_plain(scheme: str) -> bool:
    """Whether the environment asks for HTTP without TLS: for servers of one's own."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    allowed = os.environ.get(f"{_PREFIXES[SourceKind(scheme)]}_ALLOW_HTTP", "").lower() in ("true", "1")
    return allowed or (scheme == SourceKind.S3 and endpoint.startswith("http://"))


def piece_bytes(settings: StageSettings) -> int:
    """How much is taken at a time: little where there is a limit, so that it holds in every second."""
    if settings.limit_bytes_s is None:
        return _LARGEST_PIECE
    return int(min(max(settings.limit_bytes_s / 8 / settings.parallel, _SMALLEST_PIECE), _LARGEST_PIECE))


class Bucket:
    """A prefix of a bucket, or one object of it."""

    whole = False

    def __init__(self, source: Source, settings: StageSettings) -> None:
        from obstore.store import from_url

        self.revision, self.remarks = "", list[str]()
        self._source, self._settings = source, settings
        scheme, _, rest = source.address.partition("://")
        bucket, _, key = rest.partition("/")
        self._key, self._single_key = key.strip("/"), ""
        """``_single_key`` is the key where the source is one object and no prefix."""
        self._folder = key.endswith("/") or not key
        try:
            self._store: Any = from_url(f"{scheme}://{bucket}", **options(settings, plain_http=_may_be_plain(scheme)))
        except (*STORE_ERRORS, ValueError) as error:
            raise of_source(error, str(source), scheme) from error

    async def entries(self) -> AsyncIterator[Entry]:
        try:
            item = None if self._folder else await self._object()
            if item is not None and (item["size"] or not await self._has_below()):
                self._single_key = self._key
                yield self._entry(item, self._key.rpartition("/")[2])
                return
            # A prefix of the store is whole names: "a/b" never finds "a/bc".
            async for page in obstore.list(self._store, prefix=self._key or None, chunk_size=_PAGE):
                for entry in self._below(page):
                    yield entry
        except STORE_ERRORS as error:
            raise of_source(error, str(self._source), self._source.kind) from error

    async def read(self, entry: Entry, begin: int, end: int) -> AsyncGenerator[bytes]:
        key = self._single_key or "/".join(part for part in (self._key, entry.path) if part)
        wanted: dict[str, Any] = {"range": (begin, end)}
        etag = entry.version.partition(" ")[0]
        # GCS knows generations in place of If-Match; what it answers is compared below.
        if etag and self._source.kind is not SourceKind.GCS:
            wanted["if_match"] = f'"{etag.strip(_QUOTE)}"'
        what = f"{self._source.kind}://…/{key}"
        try:
            answer = await obstore.get_async(self._store, key, options=wanted)  # type: ignore[arg-type]
            if answer.meta["size"] != entry.bytes or (
                # Azure's listings have no quotes about it, its answers do.
                etag and (answer.meta["e_tag"] or "").strip(_QUOTE) != etag.strip(_QUOTE)
            ):
                raise changed(what)
            if end - begin <= piece_bytes(self._settings):
                yield cast(bytes, await answer.bytes_async())
                return
            async for piece in answer.stream(min_chunk_size=piece_bytes(self._settings)):
                yield piece
        except MISSING_ERRORS as error:
            raise changed(what) from error
        except STORE_ERRORS as error:
            raise of_source(error, what, self._source.kind) from error

    async def _has_below(self) -> bool:
        """Whether there is a folder of the object's name: then an empty one stands for that."""
        async for page in obstore.list(self._store, prefix=self._key, chunk_size=1):
            if any(self._below(page)):
                return True
        return False

    async def _object(self) -> Any:
        try:
            return await obstore.head_async(self._store, self._key)
        except MISSING_ERRORS:
            return None

    def _below(self, page: Iterable[Any]) -> Iterable[Entry]:
        start = len(self._key) + 1 if self._key else 0
        for item in page:
            path = str(item["path"])[start:]
            # The empty object that some tools make for a folder.
            if path:
                yield self._entry(item, path)

    def _entry(self, item: Any, path: str) -> Entry:
        etag = item["e_tag"] or ""
        modified = item["last_modified"].timestamp()
        version = etag or f" {modified:.0f}"
        match = _MD5.fullmatch(etag) if self._source.kind is SourceKind.S3 else None
        checksum = Checksum("md5", match[1]) if match else None
        return Entry(path, int(item["size"]), version, checksum, modified)
