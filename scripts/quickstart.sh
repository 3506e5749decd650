#!/usr/bin/env bash
# Trains a small model on this machine's CPU with real veRL, first with a static group size, then with SAGC, and compares.
#   scripts/quickstart.sh [--model walk|smollm2] [--steps N] [--out FOLDER] [--seed N] [--help]
# Knobs: VENV and PYTHON, as in scripts/setup_cpu.sh.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-.venv}
[[ $venv = /* ]] || venv=$root/$venv
example=$root/examples/quickstart

# The options are read before anything is installed: any Python 3 can.
python=$venv/bin/python
[ -x "$python" ] || python=${PYTHON:-python3}
for word in "$@"; do
    case $word in -h | --help) exec "$python" "$example/options.py" --help ;; esac
done
extras=$("$python" "$example/options.py" "$@")

"$root/scripts/setup_cpu.sh" ${extras:+--extras "$extras"}
exec "$venv/bin/python" "$example/quickstart.py" "$@"
