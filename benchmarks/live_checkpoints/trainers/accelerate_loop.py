"""A loop with accelerate that saves its whole state: accelerate_loop.py FOLDER STEP_SECONDS SAVE_EVERY."""

import logging
import shutil
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from record import Record, newest_first, step_in

logger = get_logger(__name__)


def main():
    folder, step_s, every = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    logging.basicConfig(format="%(asctime)s - %(levelname)s - %(name)s - %(message)s", level=logging.INFO)
    accelerator, record = Accelerator(cpu=True), Record()
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    def load(path):
        accelerator.load_state(str(path))
        return step_in(path)

    step = record.resume(newest_first(folder.glob("checkpoint-*")), load)
    logger.info("***** Running training *****")
    while True:
        x = torch.randn(16, 256)
        loss = torch.nn.functional.mse_loss(model(x), x)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        time.sleep(step_s)
        if step % 4 == 0:
            logger.info(f"step {step}: loss {loss.item():.4f}")
        if step % every == 0:
            with record.writing(step):
                accelerator.save_state(str(folder / f"checkpoint-{step}"))
            for old in newest_first(folder.glob("checkpoint-*"))[3:]:
                shutil.rmtree(old)


if __name__ == "__main__":
    main()
