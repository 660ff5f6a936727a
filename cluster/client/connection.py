"""Requests over HTTP to one API server: signed, put off and tried again, closed."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from yarl import URL

from kopt.cluster.client.credentials import Access, Credentials
from kopt.cluster.client.errors import ApiError, Forbidden, Unreachable, from_status, unreachable
from kopt.cluster.client.post_connection import Poster
from kopt.cluster.client.resources import Object


@dataclass(frozen=True)
class KubeSettings:
    """How long to wait and how much to ask for at once."""

    timeout_s: float = 10.0
    """For one request, answer included; a watch has its own."""
    connect_timeout_s: float = 5.0
    page: int = 500
    """Objects per page of a list."""
    connections: int = 100
    read_buffer_bytes: int = 1 << 18
    """Of each connection whose reader is slow."""
    user_agent: str = "kopt"
    read_only: bool = False
    """Anything but get, list and watch raises Forbidden before it is sent."""


class ApiConnection:
    """One API server, by paths. Every method raises ApiError or one of its kinds; see ``cluster.client.errors``.

    Requests that the server itself puts off (429 or 503 with ``Retry-After``) are tried again within their timeout;
    others are not, as a write may have happened.
    """

    def __init__(self, access: Access, settings: KubeSettings | None = None) -> None:
        self.settings = settings or KubeSettings()
        self._access = access
        self._closed = False
        self._http: aiohttp.ClientSession | None = None
        self._poster = Poster(self.settings.user_agent)

    async def close(self) -> None:
        self._closed = True
        self._poster.close()
        if self._http is not None:
            await self._http.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
    ) -> Object:
        """One request to any path; the decoded answer."""
        if self.settings.read_only and method != "GET":
            raise Forbidden(403, "ReadOnly", f"{method} {path} is not sent: this client only reads")
        content = None if body is None else orjson.dumps(body)
        most_s = timeout_s or self.settings.timeout_s
        timeout = aiohttp.ClientTimeout(most_s, sock_connect=self.settings.connect_timeout_s)
        ends_s = time.monotonic() + most_s
        while True:
            try:
                if method == "POST" and not query and (signed := await self._access.credentials()).proxy is None:
                    return await self._posted(signed, path, content or b"", content_type, most_s)
                async with self.send(method, path, query, content, content_type, timeout) as response:
                    return decoded(await response.read())
            except aiohttp.ClientError as error:
                raise unreachable(path, error) from error
            except TimeoutError as error:
                raise Unreachable(f"{method} {path} was not answered within {most_s:g} s") from error
            except ApiError as error:
                wait_s = _put_off_s(error)
                if wait_s is None or time.monotonic() + wait_s > ends_s:
                    raise
                await asyncio.sleep(wait_s)

    async def _posted(
        self, signed: Credentials, path: str, content: bytes, content_type: str, timeout_s: float
    ) -> Object:
        """The answer to a POST; signs in afresh once when the credentials are refused."""
        if self._closed:
            raise Unreachable("this client has been closed")
        answer = await self._poster.post(signed, path, content, content_type, timeout_s)
        if answer.status == 401:
            answer = await self._poster.post(await self._access.renew(), path, content, content_type, timeout_s)
        if answer.status >= 400:
            raise _refused(answer.status, answer.body, answer.headers.get("retry-after", ""))
        return decoded(answer.body)

    @contextlib.asynccontextmanager
    async def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        content: bytes | None = None,
        content_type: str = "application/json",
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer with a status below 400; signs in afresh once when the credentials are refused."""
        signed = await self._access.credentials()
        for renewed in (False, True):
            try:
                response = await self._once(signed, method, path, query, content, content_type, timeout)
            except aiohttp.ClientError as error:
                raise unreachable(path, error) from error
            except TimeoutError as error:
                raise Unreachable(f"{method} {path} was not answered in time") from error
            if response.status == 401 and not renewed:
                response.release()
                signed = await self._access.renew()
                continue
            async with response:
                if response.status >= 400:
                    raise await _refusal(response)
                yield response
            return

    async def _once(
        self,
        signed: Credentials,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        content: bytes | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout | None,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json"}
        if signed.authorization:
            headers["Authorization"] = signed.authorization
        if content is not None:
            headers["Content-Type"] = content_type
        # Paths hold checked names only, so there is nothing to encode; parsing them anew costs more than sending.
        url = URL(signed.host + path, encoded=True)
        return await self._session().request(
            method,
            url.with_query(query) if query else url,
            data=content,
            headers=headers,
            timeout=timeout,
            ssl=signed.tls if signed.tls is not None else False,
            server_hostname=signed.server_name,
            proxy=signed.proxy,
            allow_redirects=False,
        )

    def _session(self) -> aiohttp.ClientSession:
        if self._http is not None and self._http.closed:
            raise Unreachable("this client has been closed")
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self.settings.connections, keepalive_timeout=30.0),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                read_bufsize=self.settings.read_buffer_bytes,
                # Compressing for a neighbour in the same network costs the API server more than it saves.
                headers={"User-Agent": self.settings.user_agent, "Accept-Encoding": "identity"},
            )
        return self._http


async def chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """What arrives, as it arrives. Raises Unreachable when it stops before its end."""
    try:
        async for chunk in response.content.iter_any():
            yield chunk
            # A reader that always finds data never gives way to the rest of the process by itself.
            await asyncio.sleep(0)
    except aiohttp.ClientError as error:
        raise unreachable(response.url.path, error) from error
    except TimeoutError as error:
        raise Unreachable(f"{response.url.path}: nothing was received for too long") from error


def decoded(content: bytes) -> Object:
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise Unreachable(f"the answer is not JSON ({error}); is this an API server?") from error
    if not isinstance(document, dict):
        raise Unreachable("the answer is not a JSON object; is this an API server?")
    return document


async def _refusal(response: aiohttp.ClientResponse) -> ApiError:
    return _refused(response.status, await response.read(), response.headers.get("Retry-After", ""))


def _refused(status: int, content: bytes, retry_after: str) -> ApiError:
    retry_after_s = float(retry_after) if retry_after.isdigit() else None
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        document = {"message": content[:500].decode(errors="replace")}
    return from_status(status, document, retry_after_s)


def _put_off_s(error: ApiError) -> float | None:
    """How long the server asks to wait, where it has not begun with the request; None for every other refusal."""
    return error.retry_after_s if error.status in (429, 503) else None
