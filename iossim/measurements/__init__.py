"""Measured operators, stages and networks, and their file formats.

The contract: any known file becomes a :class:`~iossim.measurements.measurement.MeasurementSet`, a header and its rows
(``measurement_set``). ``formats`` are detected by contents, ``profilers`` read profilers' recordings, and
``operator_kinds`` names operators by columns. A few bad rows are dropped with a note; a file with many is refused.
"""
