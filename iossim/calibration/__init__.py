"""From measurements to a profile, and from a profile to what may be believed of it: data -> fit -> predict -> judge.

- *Data.* ``iossim.measurements`` reads files into measurement sets. ``doubts`` refuses or notes what cannot be of the
  device, ``recording`` lowers each operator once and splits shapes by their hash into those that fits see and those
  held out, ``samples`` makes of them what can be priced with any parameters, beside the ``nuisances`` of a recording:
  the host's overhead, and a board that slows down.
- *Fit.* ``fit`` is one robust least-squares fit of a set of parameters; ``bootstrap`` says how far the data
  determines them. ``calibrate`` fits what kernels tell, ``host_fit`` what networks tell of launches,
  ``concurrency_fit`` what stages tell, and ``profile_fit`` does one after the other. ``transfer`` serves devices with
  few measurements.
- *Predict.* ``prediction`` says what a profile expects of operators, networks, stages and schedules, and how far off
  it may be.
- *Judge.* ``validation`` holds predictions against measurements.

The contract: a fit takes a :class:`~iossim.hardware.profile.DeviceProfile` and gives another one, whose provenance
tells what was fitted to what, the errors on held-out shapes, the bands of predictions and some bootstrapped parameter
vectors. Predictions read nothing but the profile. Equal data and seeds give equal profiles, and held-out rows
move no parameter.
"""
