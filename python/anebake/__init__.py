"""Block graphs in MIL, the coremltools engine, and an oracle that runs packages with numpy.

Embedded in the program and imported from memory; `bake` and `oracle` are what the program calls. Nothing here prints,
and nothing decides what to bake: a request says it all.
"""
