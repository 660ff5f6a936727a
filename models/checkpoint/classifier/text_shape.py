"""The shape of a text: its digits do not count. Logs are of few shapes, so that what hangs on them alone is kept."""

_DIGITS = bytes.maketrans(b"023456789", b"1" * 9)


def shape_of(text: str) -> bytes:
    """The text with a 1 for every ASCII digit: where an expression without digits finds something hangs on this alone.

    >>> shape_of("step 120/5000 loss 1.25e-3") == shape_of("step 345/9999 loss 3.33e-7")
    True
    """
    return text.encode("utf-8", "surrogatepass").translate(_DIGITS)


def text_of(shape: bytes) -> str:
    """The text of the shape whose digits are all 1: as long as any other."""
    return shape.decode("utf-8", "surrogatepass")
