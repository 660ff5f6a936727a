"""`spacy train` on sentences that are made up here; it saves what is best and what is last without a word."""

import argparse
import random
from pathlib import Path

import spacy
from spacy.cli.init_config import init_config
from spacy.cli.train import train
from spacy.tokens import DocBin

spacy.util.fix_random_seed(0)


def sentences(path, count):
    blank, found, chooser = spacy.blank("en"), DocBin(), random.Random(count)
    for _ in range(count):
        doc = blank.make_doc(" ".join(chooser.choice(["good", "bad", "film", "book", "very", "not"]) for _ in range(8)))
        good = sum(word.text == "good" for word in doc) > sum(word.text == "bad" for word in doc)
        doc.cats = {"GOOD": float(good), "BAD": float(not good)}
        found.add(doc)
    found.to_disk(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=20)
    args = parser.parse_args()
    sentences("train.spacy", 300)
    sentences("dev.spacy", 60)
    config = init_config(lang="en", pipeline=["textcat"], silent=True)
    config["training"] |= {"max_steps": args.steps, "eval_frequency": args.every, "patience": 0}
    config["paths"] |= {"train": "train.spacy", "dev": "dev.spacy"}
    config.to_disk("config.cfg")
    train(Path("config.cfg"), Path(args.out), use_gpu=-1)


if __name__ == "__main__":
    main()
