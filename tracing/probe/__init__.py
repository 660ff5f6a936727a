"""What runs inside the user's interpreter: an unmodified script on a CUDA device that is not there.

In: a script, its arguments and a file descriptor. Out: the stream of events of ``kopt.tracing.events``.
Here: standard library and torch only, Python 3.9 and up, because nothing of ours is installed beside the script.
Not here: the caching allocator, the peak, any learned part. Those read the events, elsewhere.

The folder starts as a program, ``PYTHON kopt/tracing/probe [-m MODULE | SCRIPT] ARGUMENTS``, and names itself
``_kopt_probe``, so that no module of the script can take its place or be hidden by it.
"""
