#!/usr/bin/env bash
# Trains a small model on this machine's CPU with real veRL, first with a static group size, then with SAGC, and compares.
#   scripts/quickstart.sh [--steps N] [--out FOLDER] [--seed N] [--help]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup_cpu.sh
exec "${VENV:-.venv}/bin/python" examples/quickstart/quickstart.py "$@"
