"""Runs plans on the machine's own CPU: a thread pinned to a core for each stream, ONNX Runtime for each unit."""
