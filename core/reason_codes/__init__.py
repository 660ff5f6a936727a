"""What every reason code of an answer means and what to do about it: one file of entries for each area, and its reader.

An entry without ``do`` is one where nothing has to be done.
"""
