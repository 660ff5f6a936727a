"""What GPUs cost: who held which part of them from when until when, prices with dates, and budgets.

In: nothing. Out: types for ``policies.cost``, the meter and ``kopt cost``. Amounts are integers: milli-GPU,
milliseconds and millionths of a currency, so that sums close exactly.
"""
