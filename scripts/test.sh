#!/usr/bin/env bash
# Installs what the tests need and runs them all: lint, types, unit tests, and real trainings on the CPU.
#   scripts/test.sh [pytest arguments]        e.g. scripts/test.sh -m "not e2e"   for the fast ones
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup_cpu.sh --extras dev,examples,plots
bin=${VENV:-.venv}/bin
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/pyright" --pythonpath "$bin/python"
exec "$bin/python" -m pytest "$@"
