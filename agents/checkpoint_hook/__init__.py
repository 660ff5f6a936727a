"""``kopt agent save-hook``: for programs that cannot look for requests to save themselves, a command for each of them.

In: the pod's annotations as a file (downward API). Out: the command is run, once for each new request.
"""
