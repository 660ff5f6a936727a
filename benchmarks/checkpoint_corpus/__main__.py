"""Records the logs of ``manifest.toml``: ``make corpus``, or ``make corpus CORPUS="--only lightning"``."""

import argparse
import json
import re
import subprocess
import sys
from dataclasses import replace

from benchmarks.checkpoint_corpus.labels import labels_of, lines_in
from benchmarks.checkpoint_corpus.manifest import (
    PROGRAMS,
    Entry,
    Record,
    Written,
    read_manifest,
    read_records,
    write_records,
)
from benchmarks.checkpoint_corpus.recording import Recording, RecordingError, record
from benchmarks.checkpoint_corpus.truth import lines_of, writes_of

_VERSIONS = '''
import importlib.metadata as m, json
names = """torch transformers accelerate lightning keras jax tensorflow-cpu orbax-checkpoint xgboost lightgbm catboost
stable-baselines3 fastai spacy pytorch-ignite ultralytics mmengine paddlepaddle deepspeed mosaicml fvcore skorch poutyne
speechbrain d3rlpy gensim loguru rich structlog absl-py""".split()
print(json.dumps({name: m.version(name) for name in names if any(m.distributions(name=name))}))
'''


def interpreter(environment: str) -> str:
    """The Python of an environment, which is built if it is not there yet."""
    if environment == "own":
        return sys.executable
    found = subprocess.run(["scripts/trainer-env.sh", environment], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def truth(entry: Entry, recording: Recording, versions: dict[str, str]) -> tuple[Record, bytes]:
    """The record of a log, and the log. Raises RecordingError where no checkpoint was written."""
    lines = lines_of(recording)
    writes = tuple(
        Written(
            one.unit,
            lines.arrived_before(one.start_s),
            lines.arrived_before(one.end_s),
            round(one.start_s, 3),
            round(one.end_s, 3),
            one.step,
            one.complete,
        )
        for one in writes_of(recording.events, re.compile(entry.unit), entry.pause_s)
    )
    if not writes:
        seen = sorted({event.path for event in recording.events})
        raise RecordingError(f"nothing matches its unit; its folder saw {seen[:5]}")
    arrivals = tuple(round(1000 * at_s) for at_s in lines.arrivals_s)
    log = anonymous(b"".join(piece for _, piece in recording.pieces))
    labels = labels_of(lines.texts, entry.rules)
    return Record(entry.name, entry.framework, versions, writes, arrivals, labels), log


def anonymous(log: bytes) -> bytes:
    """A log without the folders of the machine it was recorded on."""
    log = re.sub(rb"/dev/shm/kopt-corpus-\w+", b"/tmp", log)
    log = re.sub(rb"/tmp/kopt-corpus-\w+", b"/workspace", log)
    log = re.sub(rb"[\w./-]*/trainers/[\w-]+/lib/", b"/opt/venv/lib/", log)
    return log.replace(str(PROGRAMS).encode(), b"/workspace").replace(sys.prefix.encode(), b"/opt/venv")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_corpus", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="logs whose name contains it")
    parser.add_argument("--again", action="store_true", help="also those that are there")
    parser.add_argument("--timeout", type=float, default=900.0, metavar="SECONDS", help="for one log (900)")
    options = parser.parse_args(arguments)
    records = {one.name: one for one in read_records()}
    wanted = [one for one in read_manifest() if options.only in one.name and (options.again or one.name not in records)]
    failed = 0
    for number, entry in enumerate(wanted, 1):
        print(f"[{number}/{len(wanted)}] {entry.name}", flush=True)
        python = interpreter(entry.environment)
        found = subprocess.run([python, "-c", _VERSIONS], check=True, capture_output=True, text=True)
        try:
            recording = record([python, *entry.command], {}, entry.storage, options.timeout)
            records[entry.name], log = truth(entry, recording, json.loads(found.stdout))
        except RecordingError as error:
            print(f"  error: {error}", file=sys.stderr)
            failed += 1
            continue
        # Each is stored when it is there: what is recorded already survives an interruption.
        records[entry.name].write_log(log)
        write_records(records.values())
        print(f"  {len(records[entry.name].arrivals_ms)} lines, {len(records[entry.name].writes)} checkpoints")
    label(records)
    return 1 if failed else 0


def label(records: dict[str, Record]) -> None:
    """Every record gets the labels that ``labels.toml`` gives its lines now."""
    for entry in read_manifest():
        if entry.name in records:
            one = records[entry.name]
            records[entry.name] = replace(one, labels=labels_of(lines_in(one.read_log()), entry.rules))
    write_records(records.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
