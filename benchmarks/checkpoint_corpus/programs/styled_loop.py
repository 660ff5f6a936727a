"""Loops as people write them by hand, each in the words of a style of styles.toml and with the logger it names.

There is nothing to train here: steps take the time they are told, and bytes are written as pickle or NumPy write them.
"""

import argparse
import json
import logging
import math
import multiprocessing
import os
import pickle
import random
import sys
import threading
import time
import tomllib
from pathlib import Path

import numpy as np


def speaker(style, args):
    """What says a line, and what says a step."""
    how = style["logger"]
    if how == "tqdm":
        from tqdm import tqdm

        bar = tqdm(total=args.steps, initial=args.first, desc="train")

        def step(text):
            bar.set_postfix_str(text, refresh=False)
            bar.update()

        return tqdm.write, step
    if how == "loguru":
        from loguru import logger as log

        return (lambda text: log.info(text),) * 2
    if how == "absl":
        from absl import logging as log

        log.set_verbosity(log.INFO)
        log.use_absl_handler()
        return (lambda text: log.info("%s", text),) * 2
    if how == "structlog":
        import structlog

        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper("iso"),
                structlog.processors.JSONRenderer(),
            ]
        )
        log = structlog.get_logger()

        def structured(text):
            event, _, values = text.partition(" | ")
            log.info(event, **dict(value.split("=", 1) for value in values.split() if "=" in value))

        return structured, structured
    if how == "rich":
        from rich.logging import RichHandler

        logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler()])
        return (logging.info,) * 2
    if how == "logging":
        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format=style["format"])
        return (lambda text: logging.info("%s", text),) * 2
    if how == "json":
        return (lambda text: print(json.dumps({"time": time.strftime("%FT%TZ"), "message": text})),) * 2
    return (lambda text: print(text, file=sys.stderr if how == "stderr" else sys.stdout, flush=True),) * 2


class Loop:
    def __init__(self, args, rank, barrier):
        self.args, self.rank, self.barrier = args, rank, barrier
        self.style = tomllib.loads(Path(__file__).with_name("styles.toml").read_text())[args.style]
        self.say, self.say_step = speaker(self.style, args)
        self.random, self.best, self.counter, self.kept, self.began = random.Random(args.seed), 1e9, 0, [], time.time()
        size = int(args.kilobytes * 1000 / args.parts)
        self.state = [np.random.default_rng(part).integers(0, 255, size, dtype=np.uint8) for part in range(args.parts)]

    def words(self, step, **more):
        args = self.args
        loss = 0.4 + 7 * math.exp(-step / args.steps * 3) + self.random.uniform(-0.05, 0.05)
        path = Path(args.out) / args.name.format(step=step, rank=self.rank)
        seconds = args.step_seconds * self.random.uniform(0.9, 1.3)
        return {
            "step": step,
            "steps": args.steps,
            "epoch": step // args.per_epoch,
            "epochs": args.steps // args.per_epoch,
            "inner": step % args.per_epoch,
            "per_epoch": args.per_epoch,
            "every": args.every,
            "rank": self.rank,
            "ranks": args.ranks,
            "pid": os.getpid(),
            "folder": args.out,
            "path": path,
            "name": path.name,
            "loss": loss,
            "val": loss * 1.1,
            "acc": 99 - loss * 9,
            "acc5": 99.5 - loss,
            "lr": 1e-3 * (1 - step / args.steps / 2),
            "ppl": math.exp(loss),
            "gn": self.random.uniform(0.4, 2),
            "seconds": seconds,
            "ms": 1e3 * seconds,
            "speed": 32 / seconds,
            "samples": step * 32,
            "total": time.time() - self.began,
            "bytes": 0,
            "mb": args.kilobytes / 1e3,
            "clock": time.strftime("%F %T"),
            "parts": args.parts,
            "eta": f"0:{int((args.steps - step) * seconds) // 60:02d}:{int((args.steps - step) * seconds) % 60:02d}",
        } | more

    def tell(self, key, step, **more):
        texts = self.style.get(key, [])
        for text in [texts] if isinstance(texts, str) else texts:
            (self.say_step if key == "train" else self.say)(text.format(**self.words(step, **more)))

    def write(self, path, part):
        with path.open("wb") as file:
            if self.args.writer == "pickle":
                pickle.dump({"state": self.state[part].tolist()[:2000], "bytes": self.state[part].tobytes()}, file)
            else:
                np.savez(file, self.state[part])

    def save(self, step):
        args, words = self.args, self.words(step)
        path, began = words["path"], time.time()
        if args.says_begin != "after":
            self.tell("begin", step)
        if args.says_end == "before":
            self.tell("end", step, took=0.01, bytes=int(args.kilobytes * 1000))
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if args.parts == 1:
                to = path.with_name(path.name + ".tmp") if args.rename else path
                self.write(to, 0)
            else:
                to = path.with_name(path.name + "_tmp") if args.rename else path
                to.mkdir(parents=True, exist_ok=True)
                for part in range(args.parts):
                    self.tell("progress", step, part=part + 1)
                    self.write(to / f"part-{part}.bin", part)
            if args.rename:
                to.replace(path)
        except OSError as error:
            self.tell("failed", step, error=error)
            if args.crashes:
                raise
            return
        if args.says_begin == "after":
            self.tell("begin", step)
        if args.says_end == "after":
            self.tell("end", step, took=time.time() - began, bytes=int(args.kilobytes * 1000))
        self.rotate(step, path)

    def rotate(self, step, path):
        self.kept += [path] if path not in self.kept else []
        if self.args.keep and len(self.kept) > self.args.keep:
            old = self.kept.pop(0)
            self.tell("deleted", step, path=old, name=old.name)
            for one in [*old.glob("*"), old] if old.is_dir() else [old]:
                one.rmdir() if one.is_dir() else one.unlink()

    def is_wanted(self, step):
        if not self.args.best:
            return True
        value = self.random.uniform(0, 1) - step / self.args.steps
        if value < self.best:
            self.tell("best", step, old=self.best if self.best < 1e9 else math.inf, val=value)
            self.best = value
            return True
        self.counter += 1
        self.tell("notbest", step, counter=self.counter)
        return False

    def run(self):
        args, under_way = self.args, None
        for key in ("startup", "misc", "data"):
            self.tell(key, args.first)
        if args.first:
            self.tell("load", args.first)
        for step in range(args.first + 1, args.steps + 1):
            time.sleep(args.step_seconds * self.random.uniform(0.5, 1.5))
            if step % args.log_every == 0:
                self.tell("train", step)
            if args.eval_every and step % args.eval_every == 0:
                self.tell("eval", step)
            if step % args.every == 0 and self.is_wanted(step):
                if under_way:
                    under_way.join()
                if self.barrier:
                    self.barrier.wait()
                if args.background:
                    under_way = threading.Thread(target=self.save, args=(step,))
                    under_way.start()
                else:
                    self.save(step)
            if step == args.stop:
                sys.exit(
                    'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n'
                    "RuntimeError: CUDA error: an illegal memory access was encountered"
                )
        if under_way:
            under_way.join()
        self.tell("finish", args.steps)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--style", required=True)
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--eval-every", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=1)
    parser.add_argument("--per-epoch", type=int, default=50)
    parser.add_argument("--step-seconds", type=float, default=0.008)
    parser.add_argument("--kilobytes", type=float, default=200)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--writer", choices=["pickle", "npz"], default="pickle")
    parser.add_argument("--name", default="ckpt_{step}.bin")
    parser.add_argument("--keep", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the step to go on from")
    parser.add_argument("--stop", type=int, default=0, help="the step to crash after")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--rename", action="store_true")
    parser.add_argument("--background", action="store_true")
    parser.add_argument("--crashes", action="store_true", help="where a checkpoint cannot be written")
    parser.add_argument("--says-begin", choices=["before", "after"], default="before")
    parser.add_argument("--says-end", choices=["before", "after"], default="after", help="before: it lies")
    args = parser.parse_args()
    if args.ranks == 1:
        return Loop(args, 0, None).run()
    barrier = multiprocessing.Barrier(args.ranks)
    ranks = [
        multiprocessing.Process(target=lambda rank=rank: Loop(args, rank, barrier).run()) for rank in range(args.ranks)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return None


if __name__ == "__main__":
    main()
