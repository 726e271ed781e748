"""Models become networks: ONNX files, PyTorch modules, the zoo, the published engine's files; and the passes."""
