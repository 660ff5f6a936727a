"""Predictions and a snapshot become decisions.

Everything here is a pure function: no input or output, no clock, no hidden randomness (a generator
is passed in), no pandas, no client. State comes in and goes out as a value; the caller keeps it.
"""
