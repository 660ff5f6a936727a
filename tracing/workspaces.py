"""What a convolution asks for beside its tensors while it runs.

Tensor cores read pictures whose channels lie together. Where a script leaves pictures as PyTorch lays them (all of a
channel, then the next), cuDNN turns them round in its workspace: a copy of what it reads and, unless the kernel can
write the plain layout, one of what it writes. This was asked of cuDNN 9.26 itself, whose heuristics answer for a GPU
that is described to them (since 9.8, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP); what it said of thirteen shapes stands in the
tests. Convolutions outside of tensor cores (float32 before Ampere) take megabytes at most.

A script that sets ``torch.backends.cudnn.benchmark`` has all algorithms tried that the card has room for. The one that
asks for most is, with kernels of more than one place, to unfold the picture for a single matrix product: every pixel is
copied once for each place of the kernel (Chetlur et al. 2014, arXiv:1410.0759). Where channels are many and pictures
small it is to multiply in frequencies, tile by tile (cuDNN's ``FFT_TILING``; Mathieu et al. 2014, arXiv:1312.5851):
each weight fills a tile of its own. Which of them a version tries is not known, so these bytes only widen intervals.
"""

import math

from kopt.tracing.events import Convolution, Pass

_AMPERE, _AMPERE_SMALL, _HOPPER, _VOLTA = (8, 0), (8, 6), (9, 0), (7, 0)
_STEM_CHANNELS = 4
"""Pictures of so few channels are padded, and their results written in the kernel's own layout."""
_TILE, _TILE_BYTES = 32, 32 * 17 * 8
"""Side of a tile of pixels, and its size in frequencies: complex64, and half of them, as the rest are conjugates."""
_BYTES = {"float64": 8, "complex64": 8, "float16": 2, "bfloat16": 2}


def layout_bytes(convolution: Convolution, directions: int, capability: tuple[int, int] | None) -> int:
    """Copies in another layout that the most demanding of ``directions`` needs on an NVIDIA GPU of that compute
    ``capability``; 0 where none are needed, and for other vendors (None)."""
    half = convolution.dtype in ("float16", "bfloat16")
    if capability is None or convolution.channels_last or not (half or convolution.dtype == "float32"):
        return 0
    if capability < (_VOLTA if half else _AMPERE):
        return 0
    channels, count = convolution.source[1], convolution.groups
    if count > 1 and not half and count == channels and not convolution.transposed:
        # PyTorch's own kernel for one channel at a time.
        return 0
    large = capability == _AMPERE or capability >= _HOPPER
    pointwise = math.prod(convolution.weight[2:]) == 1 and count == 1
    if (
        pointwise
        and not large
        and max((*convolution.stride, 1)) == 1
        and not (half and directions & Pass.WEIGHT_GRADIENT)
    ):
        # A matrix product of the picture as it lies.
        return 0
    source, result = _source_bytes(convolution), _result_bytes(convolution)
    weight: int = math.prod(convolution.weight) * _BYTES.get(convolution.dtype, 4)
    if directions & (Pass.INPUT_GRADIENT | Pass.WEIGHT_GRADIENT) or convolution.transposed or half or count > 1:
        return source + result + weight
    if channels <= _STEM_CHANNELS:
        return source + result if large else 0
    return source + weight


def _source_bytes(convolution: Convolution) -> int:
    size: int = _BYTES.get(convolution.dtype, 4) * math.prod(convolution.source)
    return size


def _result_bytes(convolution: Convolution) -> int:
    batch, _, *sides = convolution.source
    size = _BYTES.get(convolution.dtype, 4) * batch
    if convolution.transposed:
        counts = zip(sides, convolution.weight[2:], *_settings(convolution, len(sides)), strict=True)
        places: list[int] = [
            (side - 1) * step - 2 * pad + wide * (edge - 1) + 1 for side, edge, step, pad, wide in counts
        ]
        return size * convolution.weight[1] * convolution.groups * _product([max(0, edge) for edge in places])
    return size * convolution.weight[0] * _product(_results(convolution, sides))


def _product(sides: list[int]) -> int:
    return math.prod(sides)


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


def fourier_bytes(convolution: Convolution) -> int:
    """The source, the weight and the result in frequencies; 0 where the algorithm has no use: kernels of one place or
    larger than a tile, strides, dilations, groups, transposed convolutions, pictures that are no planes, and kernels
    that cover the whole picture: these are matrix products (the first classifier of a VGG, 9 GiB in frequencies)."""
    batch, channels, *sides = convolution.source
    edges = convolution.weight[2:]
    if len(sides) != 2 or convolution.groups > 1 or convolution.transposed or math.prod(edges) == 1:
        return 0
    if max(edges) > _TILE or max(convolution.stride) > 1 or max(convolution.dilation) > 1:
        return 0
    results = _results(convolution, sides)
    if _product(results) == 1:
        return 0
    tiles = math.prod(-(-side // (_TILE - edge + 1)) for side, edge in zip(results, edges, strict=True))
    filters = convolution.weight[0]
    return _TILE_BYTES * (batch * tiles * (channels + filters) + channels * filters)


def _results(convolution: Convolution, sides: list[int]) -> list[int]:
    """Sides of the result."""
    stride, padding, dilation = _settings(convolution, len(sides))
    return [
        max(0, side + 2 * pad - wide * (edge - 1) - 1) // step + 1
        for side, edge, step, pad, wide in zip(sides, convolution.weight[2:], stride, padding, dilation, strict=True)
    ]


def _settings(convolution: Convolution, count: int) -> list[tuple[int, ...]]:
    """Stride, padding and dilation, each with a number per spatial dimension."""
    return [_each(sizes, count) for sizes in (convolution.stride, convolution.padding, convolution.dilation)]


def _each(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    return sizes * count if len(sizes) == 1 else sizes
