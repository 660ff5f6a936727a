"""The ``kopt`` command: composes the other layers and prints what they answer.

In: arguments. Out: a table for people, or JSON, YAML, CSV for programs. Logs and progress go to stderr.
"""
