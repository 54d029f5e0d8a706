"""What all faces of Horovod's shape share: the job, process sets, handles, objects, and reduce
operations.

Nothing here imports a framework.
"""
