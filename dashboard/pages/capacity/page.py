"""Joins the data, the view and the template of the page of capacity."""

import asyncio
import time

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from kopt.dashboard.forms import form_of
from kopt.dashboard.login.middleware import user_of
from kopt.dashboard.pages.capacity.data import CAPACITY, Capacity
from kopt.dashboard.pages.capacity.questions import MOST_GPUS, QuestionError, read_question
from kopt.dashboard.pages.capacity.view import DELIVERIES, DELIVERY, asked_section, capacity_page
from kopt.dashboard.pages.page import Content, Page, PageRequest

_MOST_FORM_BYTES = 4096


async def capacity(request: PageRequest) -> Content | Response:
    """A delivery that is not offered is the default. A form asks a question, whose answer stands on the page later."""
    data = await request.latest(CAPACITY)
    problem = ""
    if request.request.method == "POST":
        problem = await _ask(request, data)
        if not problem:
            return RedirectResponse("/capacity#question", 303, {"cache-control": "no-store"})
    weeks = request.choice("delivery", DELIVERIES, DELIVERY)
    drawn = await asyncio.to_thread(capacity_page, data, weeks)
    asked = None if data.questions is None else data.questions.of(_login(request))
    section = None
    if asked is not None and data.questions is not None:
        section = await asyncio.to_thread(asked_section, asked, data.questions.ahead_of(asked))
    return {
        "view": drawn,
        "deliveries": DELIVERIES,
        "delivery": weeks,
        "weeks_text": weeks_text,
        "asked": section,
        "question_problem": problem,
        "most_gpus": MOST_GPUS,
    }


async def _ask(request: PageRequest, data: Capacity) -> str:
    """What keeps the question from being replayed; empty where it will be. Raises HTTPException 403."""
    form = await form_of(request.request, _MOST_FORM_BYTES)
    if data.questions is None:
        raise HTTPException(403)
    try:
        if form is None:
            raise QuestionError("This form is longer than the page gave it.")
        data.questions.ask(_login(request), read_question(form, data.offers, time.time()))
    except QuestionError as error:
        return f"{error}"
    return ""


def _login(request: PageRequest) -> str:
    """Empty where nobody logs in: then all of them are one."""
    user = user_of(request.request.scope)
    return "" if user is None else user.name


def weeks_text(weeks: int) -> str:
    return f"{weeks} weeks" if weeks else "at once"


PAGE = Page("/capacity", "capacity/template.html", capacity, "Capacity", feeds=(CAPACITY,), takes_forms=True)
