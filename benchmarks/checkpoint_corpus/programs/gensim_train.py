"""Word vectors with Gensim; a callback saves the model after every epoch, and Gensim tells of it."""

import argparse
import logging
import random
from pathlib import Path

from gensim.models import Word2Vec
from gensim.models.callbacks import CallbackAny2Vec


class Saver(CallbackAny2Vec):
    def __init__(self, out, apart):
        self.out, self.apart, self.epoch = out, apart, 0

    def on_epoch_end(self, model):
        self.epoch += 1
        options = {"sep_limit": 1000} if self.apart else {}
        model.save(str(Path(self.out) / f"w2v_epoch{self.epoch}.model"), **options)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--apart", action="store_true", help="large arrays in files of their own")
    args = parser.parse_args()
    logging.basicConfig(format="%(asctime)s : %(levelname)s : %(message)s", level=logging.INFO)
    chooser = random.Random(0)
    words = [f"word{number}" for number in range(400)]
    texts = [[chooser.choice(words) for _ in range(20)] for _ in range(1500)]
    Word2Vec(texts, vector_size=50, min_count=1, workers=1, epochs=args.epochs, callbacks=[Saver(args.out, args.apart)])


if __name__ == "__main__":
    main()
