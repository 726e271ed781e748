"""Backends: the simulator, which prices, and what runs and measures: NumPy, ONNX Runtime, CuPy with cuDNN, PyTorch."""
