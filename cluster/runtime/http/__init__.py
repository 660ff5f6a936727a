"""HTTP/1.1 for the clients that call thousands of times a minute, over connections that they keep open: kube-scheduler
and the API server.

A general server spends a tenth of a millisecond on each call, a tenth of what a pod may cost in all; this spends a
fifth of that. It knows requests with a Content-Length, one after the other on a connection, and refuses what else HTTP
has (chunked bodies, upgrades) with a status that says so. Whoever can reach its port may be an enemy: ``limits`` says
what callers may take, ``shares`` who pays when a server is full.

In: bytes of sockets. Out: a Request for a handler, a Reply on the wire. No handler, and nothing of Kubernetes, in here.
"""

from kopt.cluster.runtime.http.limits import SMALL_BODY_BYTES, BodyLimit, HttpLimits
from kopt.cluster.runtime.http.messages import Handler, Reply, Request
from kopt.cluster.runtime.http.server import HttpServer

__all__ = ["SMALL_BODY_BYTES", "BodyLimit", "Handler", "HttpLimits", "HttpServer", "Reply", "Request"]
