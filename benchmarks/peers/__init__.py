"""Our engine and its peers on the same work: workloads, one process per contender, what their token times mean.

The modules that a peer's process imports need nothing but the standard library and that peer, for it runs in an
environment in which Diptych is not installed.
"""
