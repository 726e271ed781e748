"""Measured operators, stages and networks, and the files that they come in.

The contract: any known file becomes a :class:`~iossim.measurements.measurement.MeasurementSet`, a header and its rows
(``measurement_set``). ``formats`` are found by looking, ``profilers`` read what profilers record, and
``operator_kinds`` names operators by columns. A few bad rows are dropped and noted; a file with many is refused.
"""
