"""Sizing: the GPU memory and compute need of a job, from its code before it runs and from a short dry run.

An entrypoint (``formats.entrypoint``) runs unmodified on a fake device in a confined child of the user's interpreter
(``sandbox``, ``probe``); what it allocates comes back as events (``events``), is replayed through a model of PyTorch's
caching allocator (``allocator``) and read as a timeline (``timeline``). Where nothing can run, formulas over arguments
and configuration answer (``analytic``). ``predictor`` adds what neither can see, learned from measured runs, and an
interval; ``estimate`` joins them all and is what everyone else calls.
"""
