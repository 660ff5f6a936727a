"""How to split the training of a language model over GPUs: step time, memory, and the best splits with their flags.

A ``TrainingPlan`` and a cluster in words come in; step times, probabilities to fit and ranked splits go out. Memory is
the sizing formulas' (``models.sizing.analytic``), collectives the bandwidth predictor's (``models.bandwidth``).
``efficiency.json`` is fitted on published measurements by ``python -m benchmarks step-time refit``.
"""
