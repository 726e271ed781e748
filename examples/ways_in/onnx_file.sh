# An ONNX file: is there anything to gain, what is the best schedule, and why? Page: docs/tutorial/first_schedule.md
set -e
iossim models export squeezenet --out model.onnx # stands for your own file
iossim models show model.onnx
iossim compare model.onnx --device t4
iossim optimize model.onnx --device t4 --out out # open out/index.html
iossim explain out/schedule.json
