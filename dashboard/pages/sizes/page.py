"""Joins the data, the view and the template of the page of sizes."""

from kopt.dashboard.pages.page import Content, Page, PageRequest
from kopt.dashboard.pages.sizes.data import SIZES
from kopt.dashboard.pages.sizes.view import recommendations


async def sizes(request: PageRequest) -> Content:
    view = recommendations(await request.latest(SIZES), request.search)
    return {"view": view, "text": request.search}


PAGE = Page("/recommendations", "sizes/template.html", sizes, "Sizes", feeds=(SIZES,), predictors=("sizing",))
