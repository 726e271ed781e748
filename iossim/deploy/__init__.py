"""A schedule as what a user's runtime runs, held to the truth where the runtime is here.

``graphs`` makes the graph that a schedule computes, merged convolutions stacked; ``runtime`` has ONNX Runtime optimise
it, once, and tells which nodes it made of which units; ``folder`` writes what is deployed, and reads it back with all
that must hold; ``check`` runs it beside what the runtime does by itself. ``tensorrt`` says what can be told to
TensorRT, which takes no schedule. Nothing here knows a cost model or a search.
"""
