"""What every process of ours in a cluster shares: the Kubernetes client, the runtime, and readers of objects.

``client/`` sends requests, ``runtime/`` is what a process is made of (informers, Lease, events, retries), ``objects/``
and ``workloads/`` read what others wrote, ``checkpoints/`` what pods say of their checkpoints, ``holds/`` marks what we
hold so that it can be given back.

In: a kubeconfig or a service account. Out: watched objects and fenced writes.
"""
