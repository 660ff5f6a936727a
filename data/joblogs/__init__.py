"""Logs of training jobs with what their lines mean → tables to learn from.

In: folders of labelled logs (``labelled.py``: real excerpts and the recorded corpus) and phrases (``phrases.toml``).
Out: ``LabelledLog`` and made-up lines (``phrases.py``) in any number of styles and languages.
"""
