"""Whether a training job can be killed now, read from its log as it is written.

bytes → lines and messages (``formats.joblog``) → what each line says (``words``, ``lines``; fitted by ``network``) →
where the job is (``machine``: one write at a time per writer, with learned timing) → state, work at risk, next safe
moment (``session``).
"""
