"""Which models are kin: names of image models → a family that is held out as one, and what kind of network it is."""

import re

from kopt.data.memory.table import Category

_PREFIXES = re.compile(
    r"^(?:tf_|gluon_|legacy_|ig_|ssl_|swsl_|dm_|nf_|cs|ese_|test_|gc(?=res)|gc_|eca_|bat_|wide_|res2)"
)
_STEMS = (
    "efficientvit",
    "efficientformer",
    "efficientnet",
    "mobilenet",
    "mobilevit",
    "mnasnet",
    "repvgg",
    "repvit",
    "regnet",
    "nfnet",
    "resne",
    "darknet",
    "vovnet",
    "convnext",
    "swin",
    "maxvit",
    "maxxvit",
    "coatnet",
    "levit",
    "hgnet",
    "ghostnet",
    "deit",
    "vitamin",
    "fastvit",
    "samvit",
    "nextvit",
    "davit",
    "gcvit",
    "crossvit",
    "convit",
    "vit",
)
"""Most telling first: the first that a name holds is its family."""
_ATTENTION = (
    "vit",
    "deit",
    "swin",
    "beit",
    "cait",
    "coat",
    "xcit",
    "eva",
    "hiera",
    "levit",
    "pvt",
    "volo",
    "nest",
    "focal",
    "twins",
    "tnt",
    "visformer",
    "former",
    "sam",
    "flexivit",
    "mvit",
    "sequencer",
    "edgenext",
    "mixer",
    "mlp",
)
"""Attention and the token mixers that share its memory pattern; what has convolutions only is a CNN."""


def image_family(model: str) -> str:
    """The family of a timm or torchvision model: ``resne`` for every ResNet relative, else the letters of its name."""
    name = model.lower().removeprefix("tf_")
    for stem in _STEMS:
        if stem in name:
            return stem
    bare = _PREFIXES.sub("", name)
    letters = re.match(r"[a-z]+", bare)
    return letters[0] if letters else name


def image_category(model: str) -> Category:
    """Whether a model's memory is that of a transformer or of a convolutional network."""
    name = model.lower()
    return Category.TRANSFORMER if any(stem in name for stem in _ATTENTION) else Category.CNN
