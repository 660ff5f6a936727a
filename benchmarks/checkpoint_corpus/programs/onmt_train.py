"""A tiny translation model with OpenNMT-py's training command, on sentences that are made up here."""

import argparse
import random
import sys
from pathlib import Path

from onmt.bin.build_vocab import main as build_vocab
from onmt.bin.train import main as train

CONFIG = """
save_data: vocab
src_vocab: vocab.src
tgt_vocab: vocab.tgt
overwrite: True
data:
  corpus_1: {path_src: train.src, path_tgt: train.tgt}
  valid: {path_src: valid.src, path_tgt: valid.tgt}
"""


def sentences(name, count):
    chooser, words = random.Random(count), [f"w{number}" for number in range(60)]
    lines = [" ".join(chooser.choice(words) for _ in range(8)) for _ in range(count)]
    Path(f"{name}.src").write_text("\n".join(lines) + "\n")
    Path(f"{name}.tgt").write_text("\n".join(" ".join(reversed(line.split())) for line in lines) + "\n")


def command(main, words):
    sys.argv = ["onmt", *words]
    main()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=10)
    args = parser.parse_args()
    sentences("train", 400)
    sentences("valid", 40)
    Path("config.yaml").write_text(CONFIG)
    command(build_vocab, ["-config", "config.yaml", "-n_sample", "-1"])
    steps = ["-train_steps", str(args.steps), "-save_checkpoint_steps", str(args.every), "-valid_steps", "50"]
    size = ["-enc_layers", "1", "-dec_layers", "1", "-hidden_size", "32", "-word_vec_size", "32", "-heads", "2"]
    rest = ["-transformer_ff", "64", "-encoder_type", "transformer", "-decoder_type", "transformer"]
    more = [
        "-batch_size",
        "16",
        "-report_every",
        "5",
        "-keep_checkpoint",
        "4",
        "-optim",
        "adam",
        "-learning_rate",
        "0.001",
        "-num_workers",
        "0",
    ]
    command(train, ["-config", "config.yaml", "-save_model", f"{args.out}/model", *steps, *size, *rest, *more])


if __name__ == "__main__":
    main()
