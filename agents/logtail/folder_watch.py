"""Looks at the files of checkpoints again and again, and tells the endpoint what has changed."""

import asyncio
import time
from pathlib import Path
from typing import Any

from kopt.agents.logtail.checkpoints import listing
from kopt.agents.logtail.jobs import Jobs

_SCAN_S, _CONFIRM_S = 5.0, 30.0


async def watch_folder(jobs: Jobs, job: str, folder: Path) -> None:
    """Send what lies in a checkpoint folder whenever it has changed, and now and then that it has not."""
    before: list[dict[str, Any]] | None = None
    sent_at_s = 0.0
    while True:
        result = await asyncio.to_thread(listing, folder)
        now_s = time.time()
        if result != before:
            jobs.attach(job, {"files": result, "files_at": now_s})
        elif now_s - sent_at_s > _CONFIRM_S:
            jobs.attach(job, {"files_at": now_s})
        if result != before or now_s - sent_at_s > _CONFIRM_S:
            before, sent_at_s = result, now_s
        await asyncio.sleep(_SCAN_S)
