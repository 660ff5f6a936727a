"""Filters a lock file on standard input: leaves out torch and the packages only its CUDA build needs."""

import re
import sys

ONLY_TORCH = re.compile(r"(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==")


def main() -> None:
    keep = True
    for line in sys.stdin:
        if line[:1] not in (" ", "#", "\n"):
            keep = ONLY_TORCH.match(line) is None
        if keep:
            sys.stdout.write(line)


if __name__ == "__main__":
    main()
