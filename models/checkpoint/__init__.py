"""Whether a training job can be killed now, read from its log as it is written.

bytes → lines and messages (``formats.joblog``) → the label of each line (``tokens``, ``lines``; fitted by ``network``)
→ where the job is (``state_machine``: one write at a time per writer, with learned timing) → state, work at risk, next
safe time (``kill_safety``); ``session`` puts them together.
"""
