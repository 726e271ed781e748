"""From measurements to a profile: fits of a device's parameters, and how far measurements determine them."""
