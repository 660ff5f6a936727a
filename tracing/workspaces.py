"""What a convolution may ask for beside its tensors while the fastest algorithm is searched for.

A script that sets ``torch.backends.cudnn.benchmark`` has all algorithms tried that the card has room for. The one that
asks for most is, with kernels of more than one place, to unfold the picture for a single matrix product: every pixel is
copied once for each place of the kernel (Chetlur et al. 2014, arXiv:1410.0759).
"""

import math

from kopt.tracing.events import Convolution

_BYTES = {"float64": 8, "complex64": 8, "float16": 2, "bfloat16": 2}


def unfolded_bytes(convolution: Convolution) -> int:
    """The unfolded picture; 0 for kernels of one place, which need none, and for groups, which have kernels of their
    own. A transposed convolution unfolds its result, whose places are those of its source."""
    kernel = math.prod(convolution.weight[2:])
    if kernel == 1 or convolution.groups > 1:
        return 0
    batch, channels, *sides = convolution.source
    size = _BYTES.get(convolution.dtype, 4) * batch * kernel
    if convolution.transposed:
        return size * convolution.weight[1] * math.prod(sides)
    return size * channels * math.prod(_results(convolution, sides))


def _results(convolution: Convolution, sides: list[int]) -> list[int]:
    """Sides of the result."""
    count = len(sides)
    stride, padding, dilation = (
        _each(sizes, count) for sizes in (convolution.stride, convolution.padding, convolution.dilation)
    )
    return [
        max(0, side + 2 * pad - wide * (edge - 1) - 1) // step + 1
        for side, edge, step, pad, wide in zip(sides, convolution.weight[2:], stride, padding, dilation, strict=True)
    ]


def _each(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    return sizes * count if len(sizes) == 1 else sizes
