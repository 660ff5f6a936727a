"""Turns predictions and a snapshot into decisions.

Everything here is a pure function: no I/O, no clock, no hidden randomness (a generator is passed in), no pandas, no
client. State is passed in and returned as a value; the caller keeps it.
"""
