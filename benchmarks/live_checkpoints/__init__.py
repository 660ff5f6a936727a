"""Trainers of many ways run as pods, and what the product says of them is compared with what they truly did.

In: programs in ``trainers`` (each notes its writes in a file of its own, which the product never reads), the control
plane and the kubelet of the tests. Out: for each way, at which share of random moments the job could be stopped and how
often that was wrong, by text alone and with a look at files; and what evictions by the controller cut off.
"""
