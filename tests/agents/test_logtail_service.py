"""The agent and the endpoint itself, with the shipped model: a trainer's log becomes a state that can be acted on."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.processes import until
from serving.conftest import MemorySource, StandInModel, no_store

from kopt.agents.logtail.file_events import Notices
from kopt.agents.logtail.following import FileSource
from kopt.agents.logtail.jobs import Jobs, JobSettings
from kopt.agents.logtail.offset_store import OffsetStore
from kopt.agents.logtail.sender import SenderSettings
from kopt.core.settings import Settings
from kopt.models.registry.loading import load_predictor
from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble

JOB, SOURCE = "research/llama", "llama-0/trainer"


@pytest.mark.slow
async def test_a_trainers_log_becomes_a_state(tmp_path: Path) -> None:
    shipped: Any = load_predictor("checkpoint", "shipped")
    models = {"demand": StandInModel, "checkpoint": lambda: shipped}
    parts = Parts(MemorySource({}), StoredFeatures(no_store), refresh_s=3600, shipped=models)
    endpoint = assemble(Settings(home=tmp_path), parts)
    endpoint.start()
    endpoint.service(CheckpointService).refresh()
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    log = tmp_path / "train.log"
    settings = JobSettings(sender=SenderSettings(linger_s=0.01))
    async with AsyncPredictionClient("http://endpoint", deadline_s=30.0, transport=transport) as client:
        jobs, notices = Jobs(client.checkpoint, OffsetStore(None), settings), Notices()
        tasks = [asyncio.create_task(jobs.run()), asyncio.create_task(notices.run())]
        await jobs.started()
        jobs.set_gpus(JOB, "pod", 8.0)
        jobs.follow(JOB, FileSource(log, SOURCE, notices, plain=True))
        job = jobs.jobs[JOB]
        try:
            for save in range(1, 4):
                with log.open("a") as file:
                    for step in range(save * 10 - 9, save * 10 + 1):
                        file.write(f"step {step}/400 loss 1.{step:03d} lr 0.0001\n")
                    file.write(f"Saving checkpoint to /out/checkpoint-{save * 10} ...\n")
                await until(lambda lines=save * 13 - 2: job.answer.get("lines") == lines)
                assert (job.answer["state"], job.answer["safe"]) == ("CKPT_WRITING", False)
                with log.open("a") as file:
                    file.write(
                        f"successfully saved checkpoint at iteration {save * 10} to /out/checkpoint-{save * 10}\n\n"
                    )
                # The end counts when the next line says nothing more of the write, and is safe once training goes on.
                await until(lambda lines=save * 13: job.answer.get("lines") == lines)
                assert (job.answer["last_durable_step"], job.answer["safe"]) == (save * 10, False)
            with log.open("a") as file:
                file.write("step 31/400 loss 1.031 lr 0.0001\n")
            await until(lambda: job.answer.get("lines") == 40)
            assert job.answer["safe"] is True
            assert job.answer["missed"] == {}
            assert job.answer["next"] == {SOURCE: 41}
            assert job.answer["work_at_risk_gpu_seconds"] >= 0
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            endpoint.stop()
