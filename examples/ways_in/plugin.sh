# A plugin of your own: copy the template, install it, use its device, run its tests. Page: docs/howto/plugins.md
# Takes the folder of the repository: bash plugin.sh ~/iossim
set -e
cp -r "${1:-../..}/examples/plugin" mine
python -m pip install --quiet ./mine
iossim doctor
iossim compare squeezenet --device example-gpu
python -m pytest -q mine/tests
