"""The routes: every page of the list over one source, static files, and errors as pages."""

import hashlib
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from kopt.core.settings import Settings
from kopt.dashboard import assets
from kopt.dashboard.data.feed import AnyFeed, Restricted, Source
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Snapshot
from kopt.dashboard.events import ChangeStreams
from kopt.dashboard.login.authority import AuthorityError
from kopt.dashboard.login.middleware import user_of
from kopt.dashboard.login.routes import Login, LoginRoutes
from kopt.dashboard.pages.page import Content, Page, PageRequest
from kopt.dashboard.pages.pages import NAVIGATION, PAGES
from kopt.dashboard.problem import FOR_PROGRAMS, problem_document
from kopt.dashboard.rendering import environment
from kopt.dashboard.security import SECURITY_HEADERS

Endpoint = Callable[..., Awaitable[Response]]


class Routes:
    """The routes over one source."""

    def __init__(
        self,
        source: Source,
        refresh_s: float,
        settings: Settings,
        *,
        example: bool = False,
        login: Login | None = None,
    ) -> None:
        self._source, self._refresh_s, self._settings, self._login = source, refresh_s, settings, login
        self._templates = environment(NAVIGATION, example=example)
        self._streams = ChangeStreams()

    def add_to(self, app: FastAPI) -> None:
        routes: dict[str, Endpoint] = {}
        for page in PAGES:
            routes |= dict.fromkeys((*page.aliases, page.path), self._drawing(page))
            routes |= {path: self._answering(answer) for path, answer in page.documents.items()}
            if page.followed is not None:
                routes[page.events] = self._saying(page.followed)
            if page.takes_forms:
                app.add_api_route(page.path, self._drawing(page), methods=["POST"], response_model=None)
        routes |= {"/static/{address:path}": self.static, "/healthz": self.health}
        if self._login is not None:
            LoginRoutes(self._login, self._templates).add_to(app)
        for path, endpoint in routes.items():
            app.add_api_route(path, endpoint, methods=["GET", "HEAD"], response_model=None)
        app.add_exception_handler(HTTPException, self.problem)
        app.add_exception_handler(AuthorityError, self.problem)
        app.add_exception_handler(Exception, self.problem)

    def _drawing(self, page: Page) -> Endpoint:
        async def draw(request: Request) -> Response:
            page_request = await self._request(request)
            content = await page.view(page_request)
            if isinstance(content, Response):
                return content
            return self._page(request, page, page_request.snapshot, content)

        return draw

    def _answering(self, document: Callable[[PageRequest], Awaitable[Response]]) -> Endpoint:
        async def answer(request: Request) -> Response:
            return await document(await self._request(request))

        return answer

    def _saying(self, feed: AnyFeed) -> Endpoint:
        async def stream(request: Request) -> Response:
            return self._streams.of(self._source_for(request), feed)

        return stream

    async def _request(self, request: Request) -> PageRequest:
        source = self._source_for(request)
        return PageRequest(request, await source.latest(SNAPSHOT), source, self._settings)

    def _source_for(self, request: Request) -> Source:
        """The source as whoever asks may see it."""
        if self._login is None:
            return self._source
        user, authority = user_of(request.scope), self._login.authority
        if user is None:
            # Never reached behind the middleware; without it nothing is shown.
            raise HTTPException(403)
        return Restricted(self._source, lambda rights: authority.rights_of(user, rights))

    async def static(self, request: Request, address: str) -> Response:
        asset = assets.asset(address)
        if asset is None:
            raise HTTPException(404)
        headers = {"cache-control": assets.FOREVER, "vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(
                asset.compressed, media_type=asset.media_type, headers=headers | {"content-encoding": "gzip"}
            )
        return Response(asset.content, media_type=asset.media_type, headers=headers)

    async def health(self) -> Response:
        return JSONResponse({"schema": "kopt/v1", "status": "live"})

    async def problem(self, request: Request, error: Exception) -> Response:
        """Every error as a page in words, or as a problem document where a program asks."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        if isinstance(error, AuthorityError):
            status = 503
        title, text = _ERROR_TEXTS.get(status, _ERROR_TEXTS[500])
        if isinstance(error, HTTPException) and status == 404 and error.detail != "Not Found":
            text = str(error.detail)
        if request.url.path.startswith(FOR_PROGRAMS):
            return problem_document(status, title, text)
        page = self._templates.get_template("problem.html").render(
            title=title, text=text, status=status, path="", refresh_s=self._refresh_s
        )
        # What handles an unforeseen error stands outside the guard.
        return HTMLResponse(page, status, headers=SECURITY_HEADERS)

    def _page(self, request: Request, page: Page, snapshot: Snapshot, content: Content) -> Response:
        serving = {model.name: model for model in snapshot.endpoint.models}
        shared = {
            "snapshot": snapshot,
            "path": request.url.path,
            "refresh_s": self._refresh_s,
            "query": request.query_params,
            "user": user_of(request.scope),
            "events": page.events,
            "page_models": [(name, serving.get(name)) for name in page.predictors],
        }
        text = self._templates.get_template(page.template).render(**shared, **content)
        # The moment of the snapshot stands in the page, so an equal page means equal data.
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        headers = {"etag": tag}
        if user_of(request.scope) is not None:
            headers["cache-control"] = "private, no-cache"
        return HTMLResponse(text, headers=headers)


_ERROR_TEXTS = {
    403: ("Not from here", "A form of another site asked for this page; open it from these pages themselves."),
    404: ("Not here", "This page does not exist."),
    405: ("Only to be read", "This address is read only; nothing can be changed through it."),
    413: ("Too much", "This form is longer than any that these pages send."),
    503: ("The cluster does not answer", "What you may see cannot be looked up now; try again."),
    500: ("Something broke", "This page could not be drawn. The log of the pages says why; the other pages may work."),
}
