# Which GPU for this model? Compare two by hand, then ask a study that has a limit on latency. Page: docs/howto/choosing_a_gpu.md
set -e
iossim compare squeezenet --device t4 --dtype fp16 --engine graph
iossim compare squeezenet --device l4 --dtype fp16 --engine graph
iossim study run which_gpu --out which_gpu # open which_gpu/report.html
