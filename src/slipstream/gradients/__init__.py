"""The exchange of gradients for every framework: buckets, and when each of them travels.

A face gives the gradients (`exchange.Gradients`). Nothing here imports a framework.
"""
