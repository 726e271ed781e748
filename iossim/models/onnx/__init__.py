"""ONNX files as graphs, and graphs as ONNX files."""
