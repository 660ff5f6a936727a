"""Forms that are sent to the pages: read within bounds, and only where a page of ours sent them."""

from urllib.parse import urlsplit

from fastapi import Request
from starlette.exceptions import HTTPException


async def form_of(request: Request, most_bytes: int) -> str | None:
    """The body of a form; None for more than ``most_bytes``. Raises HTTPException 403 for one of another site."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(403)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            return None
    return body.decode("ascii", "replace")
