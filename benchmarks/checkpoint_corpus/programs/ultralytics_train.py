"""A tiny detector trained by Ultralytics on pictures that are made up here; it saves without a word."""

import argparse
import os
from pathlib import Path

import cv2
import numpy as np

os.environ["YOLO_OFFLINE"], os.environ["YOLO_CONFIG_DIR"] = "true", str(Path.cwd())
from ultralytics import YOLO  # noqa: E402


def pictures(root, count):
    generator = np.random.default_rng(0)
    for part in ("train", "val"):
        (root / "images" / part).mkdir(parents=True)
        (root / "labels" / part).mkdir(parents=True)
        for number in range(count):
            image = generator.integers(0, 60, (64, 64, 3), dtype=np.uint8)
            x, y = generator.integers(8, 40, 2)
            cv2.rectangle(image, (int(x), int(y)), (int(x) + 16, int(y) + 16), (255, 255, 255), -1)
            cv2.imwrite(str(root / "images" / part / f"{number}.png"), image)
            text = f"0 {(x + 8) / 64:.4f} {(y + 8) / 64:.4f} 0.25 0.25\n"
            (root / "labels" / part / f"{number}.txt").write_text(text)
    (root / "data.yaml").write_text(f"path: {root}\ntrain: images/train\nval: images/val\nnames: [box]\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--save-period", type=int, default=-1)
    args = parser.parse_args()
    root = Path.cwd() / "boxes"
    pictures(root, 16)
    model = YOLO("yolo11n.yaml")
    model.train(
        data=str(root / "data.yaml"),
        epochs=args.epochs,
        imgsz=64,
        batch=8,
        device="cpu",
        workers=0,
        project=args.out,
        name="run",
        plots=False,
        save_period=args.save_period,
        amp=False,
    )


if __name__ == "__main__":
    main()
