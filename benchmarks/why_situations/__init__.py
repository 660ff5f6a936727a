"""Situations in which a workload waits, built so that the cause is known from how they are built.

Every situation is a set of Kubernetes objects, as an API server would list them, with noise that is not the cause:
other nodes, queues and workloads. ``label`` is the code that a right diagnosis names first. ``redo`` makes a change and
checks by arithmetic of its own whether the workload fits then: no code of the product decides about the product.
"""
