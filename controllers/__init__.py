"""Controllers turn decisions into Kubernetes objects: webhooks, controllers, the scheduler extender.

In: a snapshot and predictions from ``serving.client``. Out: patches, bindings, events.
A controller reads, asks (with a deadline), calls a policy and applies; it holds no arithmetic
and imports no machine-learning package.
"""
