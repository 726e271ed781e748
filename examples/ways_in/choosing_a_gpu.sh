# Which GPU for this model? Compare two, then ask a study that has a limit on latency. Page: docs/howto/choosing_a_gpu.md
set -e
iossim compare squeezenet --device t4,l4 --dtype fp16
iossim study run which_gpu --out which_gpu # open which_gpu/report.html
