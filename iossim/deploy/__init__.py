"""A schedule in the form that a user's runtime runs, verified if the runtime is installed here.

``graphs`` makes the graph that a schedule computes, merged convolutions stacked; ``runtime`` has ONNX Runtime optimise
it, once, and reports which nodes it made from which units; ``folder`` writes the deployment, and reads it back with all
its constraints; ``check`` runs it beside the runtime's defaults. ``tensorrt`` lists the settings that TensorRT accepts,
which takes no schedule. Nothing here knows a cost model or a search.
"""
