"""The Kubernetes client, informer and Lease that controllers, agents, serving and cli share.

In: a kubeconfig or a service account. Out: watched objects and fenced writes.
"""
