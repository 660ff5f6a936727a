"""Joins the data, the view and the template of the page of alerts, and takes acknowledgements of those logged in."""

import asyncio
import time
from urllib.parse import parse_qs

from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from kopt.core.alerts.acknowledgement import LONGEST_NOTE, Acknowledgement, is_printable_note
from kopt.dashboard.data.alerts import AlertHistory, AlertsError
from kopt.dashboard.forms import form_of
from kopt.dashboard.login.middleware import user_of
from kopt.dashboard.pages.alerts.data import ALERTS, WINDOWS_S, Alerts
from kopt.dashboard.pages.alerts.view import alerts_page
from kopt.dashboard.pages.page import Content, Page, PageRequest

_DEFAULT_WINDOW = "7d"
_LONGEST_FORM = 8 << 10
_MOST_FIELDS = 10
_HOUR_S, _MOST_AN_HOUR = 3600.0, 60
"""Acknowledgements of one person: more are a program, and fill the database."""


class RefusedError(Exception):
    """An acknowledgement that is not kept; the message is a sentence for whoever sent it."""


async def alerts(request: PageRequest) -> Content | Response:
    """The page; a form acknowledges an alert, and leads back to it. Raises HTTPException 403 for a form of another
    site and where nobody is logged in, 413 for a long one."""
    state = await request.latest(ALERTS)
    window, refused = request.query.get("since", ""), ""
    window = window if window in WINDOWS_S else _DEFAULT_WINDOW
    if request.request.method == "POST":
        try:
            await _acknowledge(request, state)
            return RedirectResponse(f"/alerts?since={window}", 303, {"cache-control": "no-store"})
        except (RefusedError, AlertsError) as error:
            refused = f"{error}"
    history = state.history(window)
    shown = history or AlertHistory()
    drawn = await asyncio.to_thread(alerts_page, shown, WINDOWS_S[window], time.time(), state.firing)
    return {
        "view": drawn,
        "alerts": state,
        "is_read": history is not None,
        "problems": [text for text in (state.problem, history.problem if history else "", refused) if text],
        "windows": tuple(WINDOWS_S),
        "window": window,
        "longest_note": LONGEST_NOTE,
    }


async def _acknowledge(request: PageRequest, state: Alerts) -> None:
    """Only what fires now and is the reader's to see. Raises RefusedError and AlertsError."""
    form = await form_of(request.request, _LONGEST_FORM)
    if form is None:
        raise HTTPException(413)
    user = user_of(request.request.scope)
    if user is None or state.acknowledge is None:
        # Where nobody logs in the page has a command in place of the form: a name would be anybody's.
        raise HTTPException(403)
    try:
        fields = parse_qs(form, errors="replace", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise RefusedError("This form has more fields than the page gave it.") from None
    identity, note = fields.get("alert", [""])[-1], fields.get("note", [""])[-1].strip()
    if not is_printable_note(note):
        raise RefusedError(f"A note is one line of at most {LONGEST_NOTE} characters; nothing was kept.")
    if identity not in {each.identity for each in state.firing}:
        raise RefusedError("This alert does not fire any more, or is not yours to see; nothing was kept.")
    now_s = time.time()
    lately = {
        each
        for _, history in state.histories
        for each in history.acknowledgements
        if each.who == user.name and each.at_s > now_s - _HOUR_S
    }
    if len(lately) >= _MOST_AN_HOUR:
        raise RefusedError(f"You have acknowledged {len(lately)} alerts within an hour; nothing was kept.")
    await state.acknowledge(Acknowledgement(identity, now_s, user.name, note))


PAGE = Page("/alerts", "alerts/template.html", alerts, "Alerts", feeds=(ALERTS,), takes_forms=True)
