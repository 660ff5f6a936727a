"""What training jobs print, taken apart: bytes → lines → messages with time and writer.

In: bytes as they arrive, in pieces of any size. Out: ``Line`` (``LineSplitter``) and, from a line's text, ``Message``:
what the program said, without colours, prefixes of container runtimes and launchers or JSON around it, beside when and
by which rank. Nothing is refused: a log is whatever a program wrote. What a message means, ``models.checkpoint`` says.
"""

from kopt.formats.joblog.binary import is_binary
from kopt.formats.joblog.lines import Line, LineSplitter
from kopt.formats.joblog.message import Message, read_message
from kopt.formats.joblog.stamps import Precision, Stamp, find_stamp

__all__ = ["Line", "LineSplitter", "Message", "Precision", "Stamp", "find_stamp", "is_binary", "read_message"]
