"""Joins the data, the view and the template of the page of jobs."""

from kopt.dashboard.pages.jobs.data import JOBS
from kopt.dashboard.pages.jobs.view import DEFAULT_SPAN_H, LEGEND, SPANS_H, STATE_LABELS, jobs_page
from kopt.dashboard.pages.page import Content, Page, PageRequest


async def jobs(request: PageRequest) -> Content:
    text, hours = request.search, request.choice("hours", SPANS_H, DEFAULT_SPAN_H)
    view = jobs_page(await request.latest(JOBS), text, hours)
    return {"view": view, "text": text, "hours": hours, "spans": SPANS_H, "legend": LEGEND, "labels": STATE_LABELS}


PAGE = Page("/jobs", "jobs/template.html", jobs, "Jobs", feeds=(JOBS,), predictors=("checkpoint",))
