"""One file by its URL, in parts where the server gives ranges; else it comes whole, or again from the start."""

import email.utils
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions
from obstore.store import HTTPStore

from kopt.agents.staging.buckets import options, piece_bytes
from kopt.agents.staging.settings import StageSettings
from kopt.agents.staging.troubles import MISSING_ERRORS, STORE_ERRORS, changed, of_source, unconnected
from kopt.core.staging.manifest import Entry, Source, StagingError


class WebFile:
    """The URL may hold a query, such as a signature; it is asked for by GET alone, which signatures allow."""

    def __init__(self, source: Source, settings: StageSettings) -> None:
        self.revision, self.remarks, self.whole = "", list[str](), False
        self._source, self._settings = source, settings
        parts = urlsplit(source.address)
        self._name = unquote(parts.path.rpartition("/")[2])
        if not self._name:
            raise StagingError(f"{source} names no file; folders cannot be listed over https, name each file")
        plain = parts.scheme == "http"
        self._store: Any = HTTPStore.from_url(source.address, **options(settings, plain_http=plain))

    async def entries(self) -> AsyncIterator[Entry]:
        meta = await self._meta()
        yield Entry(self._name, int(meta["size"]), _version(meta), modified_at=meta["last_modified"].timestamp())

    async def read(self, entry: Entry, begin: int, end: int) -> AsyncGenerator[bytes]:
        wanted: dict[str, Any] = {} if self.whole else {"range": (begin, end)}
        if entry.version.startswith('"'):
            wanted["if_match"] = entry.version
        try:
            answer = await obstore.get_async(self._store, "", options=wanted)  # type: ignore[arg-type]
            if answer.meta["size"] != entry.bytes or _version(answer.meta) != entry.version:
                raise changed(str(self._source))
            async for piece in answer.stream(min_chunk_size=piece_bytes(self._settings)):
                yield piece
        except STORE_ERRORS as error:
            raise of_source(error, str(self._source), "https") from error

    async def _meta(self) -> Any:
        """Size and version, and whether there are ranges: by asking for the first byte."""
        try:
            return (await obstore.get_async(self._store, "", options={"range": (0, 1)})).meta
        except (*MISSING_ERRORS, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise of_source(error, str(self._source), "https") from error
        except exceptions.BaseError as error:
            if unconnected(error):
                raise of_source(error, str(self._source), "https") from error
            self.whole = True
        try:
            return (await obstore.get_async(self._store, "")).meta
        except STORE_ERRORS as error:
            raise of_source(error, str(self._source), "https") from error


def _version(meta: Any) -> str:
    """The etag, else when it was changed; nothing where the server tells neither (the library then says 1970)."""
    if meta["e_tag"]:
        return str(meta["e_tag"])
    at = meta["last_modified"].timestamp()
    return email.utils.formatdate(at, usegmt=True) if at > 0 else ""
