"""The log agent: follows what training jobs print and tells the prediction endpoint, which says whether they are safe.

In: files beside a trainer, container logs of a node, or streams from the API server; listings of checkpoint folders,
named by the job's owner or discovered in the volumes of its pods.
Out: lines with their numbers to ``/v1/checkpoint`` and, where the mode allows it, annotations on the pods.

A line has the same number however often it is read, so that whatever is sent twice counts once. What was acknowledged
is kept in a small file; reading stops where the endpoint does not keep up.
"""
