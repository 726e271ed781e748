"""A schedule in the form that a user's runtime runs, verified if the runtime is installed here.

``runtime`` makes the graph that a schedule computes, merged convolutions stacked, has ONNX Runtime optimise it, once,
and reports which nodes it made from which units; ``deployment`` writes the folder, reads it back with all its
constraints, and runs it beside the runtime's defaults. Only ``deploying``, which does all of this for the command,
knows a search; it also lists the settings that TensorRT accepts, which takes no schedule.
"""
