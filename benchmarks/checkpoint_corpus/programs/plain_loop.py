"""Training loops as people write them by hand; --says chooses when and how they speak of their checkpoints."""

import argparse
import json
import logging
import sys
import threading
import time
from pathlib import Path

import torch

ANNOUNCED = {
    "before": ("Saving checkpoint to {path}", None),
    "after": (None, "Checkpoint saved to {path}"),
    "both": ("=> saving checkpoint at iteration {step} ...", "=> done: {path} ({size} bytes)"),
    "none": (None, None),
    "terse": ("save {path}", "ok"),
    "seconds": (None, "wrote {path} in {seconds:.2f}s"),
    "de": ("Speichere Modell nach {path} ...", "Modell gespeichert (Schritt {step})."),
    "zh": ("正在保存检查点到 {path}", "检查点已保存:{path}"),
    "es": ("Guardando punto de control en {path}", "Punto de control guardado"),
    "fr": ("Sauvegarde du modèle dans {path}...", "Modèle sauvegardé."),
    "ru": ("Сохраняю модель в {path}", "Модель сохранена"),
    "ja": ("チェックポイントを保存しています: {path}", "保存完了: {path}"),
}
STEPS = {
    "before": "Epoch [{epoch}/{epochs}], Step [{inner}/{per_epoch}], Loss: {loss:.4f}",
    "after": "step {step}/{steps} | loss {loss:.4f} | lr 1.00e-03 | {speed:.0f} samples/s",
    "both": "iter {step}: loss {loss:.3f}, time {ms:.1f}ms",
    "none": "{step} {loss:.4f}",
    "terse": "[{step}] l={loss:.3f}",
    "seconds": "epoch={epoch} batch={inner} train_loss={loss:.5f}",
    "de": "Epoche {epoch}/{epochs}, Schritt {step}, Verlust {loss:.4f}",
    "zh": "第{epoch}轮 第{step}步 损失: {loss:.4f}",
    "es": "Época {epoch}, paso {step}, pérdida {loss:.4f}",
    "fr": "Époque {epoch} étape {step} perte {loss:.4f}",
    "ru": "Эпоха {epoch} шаг {step} потери {loss:.4f}",
    "ja": "エポック {epoch} ステップ {step} 損失 {loss:.4f}",
}


class Speaker:
    """print, logging or JSON lines."""

    def __init__(self, how):
        self.how = how
        if how == "logging":
            logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    def say(self, text):
        if self.how == "json":
            print(json.dumps({"ts": time.time(), "level": "info", "msg": text}, ensure_ascii=False))
        elif self.how == "logging":
            logging.info(text)
        else:
            print(text)


def save(args, model, optimizer, step, speaker):
    path = Path(args.out) / (args.name.format(step=step))
    before, after = ANNOUNCED[args.says]
    if before:
        speaker.say(before.format(path=path, step=step))
    started = time.time()
    # Another file takes its place when it is whole, as careful people do it.
    to = path.with_suffix(".tmp") if args.rename else path
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, to)
    if args.rename:
        to.rename(path)
    if after:
        took = time.time() - started
        speaker.say(after.format(path=path, step=step, seconds=took, size=path.stat().st_size))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--says", choices=list(ANNOUNCED), default="both")
    parser.add_argument("--how", choices=["print", "logging", "json"], default="print")
    parser.add_argument("--name", default="ckpt_{step}.pt")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--background", action="store_true", help="write in a thread while training goes on")
    parser.add_argument("--rename", action="store_true")
    parser.add_argument("--step-seconds", type=float, default=0.02)
    args = parser.parse_args()
    speaker = Speaker(args.how)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    writer, per_epoch = None, 50
    speaker.say(f"config: {vars(args)}")
    for step in range(1, args.steps + 1):
        began = time.time()
        x = torch.randn(32, 64)
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(args.step_seconds)
        took = time.time() - began
        words = {
            "epoch": (step - 1) // per_epoch + 1,
            "inner": (step - 1) % per_epoch + 1,
            "epochs": args.steps // per_epoch,
            "per_epoch": per_epoch,
            "step": step,
            "steps": args.steps,
            "loss": loss.item(),
            "speed": 32 / took,
            "ms": 1000 * took,
        }
        speaker.say(STEPS[args.says].format(**words))
        if step % args.every == 0:
            if writer:
                writer.join()
            writer = threading.Thread(target=save, args=(args, model, optimizer, step, speaker))
            writer.start()
            if not args.background:
                writer.join()
    if writer:
        writer.join()
    speaker.say("done")


if __name__ == "__main__":
    main()
