"""Several servers as one application of Ray Serve: replicas, a router, and what stands before them.

Needs the extra ``ray``; deploy/ray has the configuration.
"""
