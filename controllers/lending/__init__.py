"""Pools of GPUs that services lend to training: borrowers' quotas follow the forecasts, GPUs come back in time.

In: LendingPools, pods, queues and workloads as informers show them, forecasts of the prediction endpoint. Out: quotas,
holds and notices on borrowers, the pools' status. What is decided is in ``policies.lending``; without the endpoint
nothing new is lent, and without this controller the native scheduler makes room for services by priority.
"""
