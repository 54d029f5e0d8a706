"""Memory of accelerators on its way to the engine and back, for every framework (`stager` says how).

A face brings its devices (`device.Device`) and its arrays (`device.Memory`). Nothing here imports a framework.
"""
