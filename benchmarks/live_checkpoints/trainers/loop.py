"""A loop of torch that saves in one of several ways: loop.py WAY FOLDER STEP_SECONDS SAVE_EVERY."""

import copy
import io
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import Record, newest_first, step_in
from safetensors.torch import load_file, save_file

KEEP, REPORT_EVERY, CHUNK = 3, 4, 1 << 16


class Loop:
    """``model`` has a megabyte, its optimizer two."""

    def __init__(self, way: str, folder: Path, step_s: float, every: int) -> None:
        self.folder, self.step_s, self.every, self.step = folder, step_s, every, 0
        self.record = Record()
        self.model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.save: Callable[[], None] = getattr(self, f"save_{way}")
        self.best_only, self.best, self.thread = way == "best", float("inf"), threading.Thread()
        self.random = random.Random(way)
        self.train_step()
        self.step = 0

    def run(self) -> None:
        kept = [path for path in self.folder.iterdir() if "tmp" not in path.name]
        self.step = self.record.resume(newest_first(kept), self.load)
        print(f"Resuming from step {self.step}" if self.step else "Starting training", flush=True)
        while True:
            loss = self.train_step()
            if self.step % REPORT_EVERY == 0:
                print(f"step {self.step} | loss {loss:.4f} | lr 1.0e-03", flush=True)
            if self.best_only:
                self.validate()
            elif self.step % self.every == 0:
                self.save()
                self.drop_old()

    def train_step(self) -> float:
        x = torch.randn(16, 256)
        loss = torch.nn.functional.mse_loss(self.model(x), x)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        time.sleep(self.step_s)
        return float(loss)

    def validate(self) -> None:
        """Improves at every fourth time or so."""
        if self.step % (self.every // 4):
            return
        loss = self.random.uniform(0.9, 1.0) * min(self.best, 1.0) if self.random.random() < 0.3 else 1.1
        print(f"step {self.step} | validation loss {loss:.4f}", flush=True)
        if loss < self.best:
            print(f"Validation loss improved from {self.best:.4f} to {loss:.4f}. Saving model to best.pt", flush=True)
            self.best = loss
            self.dump(self.folder / "best.pt")

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, path: Path) -> int:
        if path.is_dir():
            state = {name: torch.load(path / f"{name}.pt") for name in ("model", "optimizer", "state")}
            state["step"] = state["state"]["step"]
        elif path.suffix == ".safetensors":
            self.model.load_state_dict(load_file(path))
            return step_in(path)
        else:
            state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def drop_old(self) -> None:
        for path in newest_first(path for path in self.folder.iterdir() if "tmp" not in path.name)[KEEP:]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    @property
    def file(self) -> Path:
        return self.folder / f"checkpoint-{self.step}.pt"

    def dump(self, path: Path) -> None:
        with self.record.writing(self.step):
            torch.save(self.state(), path)

    def save_announced(self) -> None:
        print(f"Saving checkpoint to {self.file}", flush=True)
        self.dump(self.file)
        print(f"Saved checkpoint {self.file}", flush=True)

    def save_silent(self) -> None:
        self.dump(self.file)

    def save_begun(self) -> None:
        print(f"Saving model checkpoint to {self.file}", flush=True)
        self.dump(self.file)

    def save_ended(self) -> None:
        self.dump(self.file)
        print(f"Checkpoint saved to {self.file}", flush=True)

    def save_parts(self) -> None:
        """Says that the model is saved while the optimizer is not."""
        folder = self.folder / f"checkpoint-{self.step}"
        with self.record.writing(self.step):
            folder.mkdir(exist_ok=True)
            torch.save(self.model.state_dict(), folder / "model.pt")
            print(f"Model saved to {folder}/model.pt", flush=True)
            torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")
            torch.save({"step": self.step}, folder / "state.pt")

    def save_atomic(self) -> None:
        path = self.folder / f"model-{self.step}.safetensors"
        print(f"Saving weights at step {self.step}", flush=True)
        with self.record.writing(self.step):
            save_file(self.model.state_dict(), path.with_suffix(".tmp"))
            path.with_suffix(".tmp").rename(path)
        print(f"Weights of step {self.step} saved", flush=True)

    def in_background(self, ended: str) -> None:
        """A copy is written beside the training, in pieces, and synced."""
        if self.thread.is_alive():
            self.thread.join()
        state, path, step = copy.deepcopy(self.state()), self.file, self.step

        def write() -> None:
            buffer = io.BytesIO()
            torch.save(state, buffer)
            data = buffer.getbuffer()
            with self.record.writing(step), path.open("wb", buffering=0) as file:
                for start in range(0, len(data), CHUNK):
                    file.write(data[start : start + CHUNK])
                os.fsync(file.fileno())
            if ended:
                print(ended.format(path=path, step=step), flush=True)

        self.thread = threading.Thread(target=write)
        self.thread.start()

    def save_async(self) -> None:
        print(f"Scheduled async checkpoint for step {self.step}", flush=True)
        self.in_background("Async checkpoint of step {step} finished: {path}")

    def save_async_begun(self) -> None:
        print(f"Saving checkpoint of step {self.step} in the background", flush=True)
        self.in_background("")

    def save_best(self) -> None: ...


if __name__ == "__main__":
    torch.set_num_threads(1)
    Loop(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])).run()
