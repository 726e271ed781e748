"""From measurements to a profile, and how good it is: data -> fit -> judge.

- *Data.* ``iossim.measurements`` reads files into measurement sets. ``recording`` refuses or notes rows of other
  devices, lowers each operator once and splits shapes by their hash into those that fits see and those held out,
  ``samples`` lays them out to be priced with any parameters, beside the ``nuisances`` of a recording: the host's
  overhead, and a board that slows down.
- *Fit.* ``fit`` is one robust least-squares fit of a set of parameters, and its bootstrap estimates how far the data
  determines them. ``calibrate`` fits the parameters of kernels, then those of launches (``host_fit``), then those of
  concurrency (``concurrency_fit``). ``samples_refinement`` serves devices with few measurements.
- *Judge.* ``validation`` compares predictions (:mod:`iossim.prediction`) with measurements of operators, on held-out
  shapes, of stages and of whole networks; whatever cannot be judged is left out with a note.

The contract: a fit takes a :class:`~iossim.hardware.profile.DeviceProfile` and returns another one, whose provenance
records what was fitted to which data, the errors on held-out shapes, the bands of predictions and the spread of
parameters. Predictions read only the profile. Equal data and seeds give equal profiles, and held-out rows move
no parameter.

A guest: no other room imports this one.
"""
