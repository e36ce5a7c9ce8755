#!/bin/sh
# Installs this bundle without internet:   ./install.sh [FOLDER] (default: ~/computerrl)
# Images and models go to $COMPUTERRL_CACHE (default ~/.cache/computerrl); PYTHON names another interpreter than python3.
set -eu
bundle=$(cd "$(dirname "$0")" && pwd)
target=${1:-$HOME/computerrl}
cache=${COMPUTERRL_CACHE:-$HOME/.cache/computerrl}
python=${PYTHON:-python3}

fail() { printf 'error: %s\n    -> %s\n' "$1" "$2" >&2; exit 3; }

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' \
    || fail "$python is not Python 3.11 or 3.12" "name another one: PYTHON=python3.11 ./install.sh"
wheel=$(ls "$bundle"/wheels | sed -n 's/^numpy-[^-]*-cp\([0-9]*\)-.*/\1/p' | head -n 1)
here=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
[ -z "$wheel" ] || [ "$wheel" = "$here" ] || fail "the bundle is for Python cp$wheel, this is cp$here" "make the bundle with the same Python"

echo "checking every file"
(cd "$bundle" && sha256sum --quiet --check SHA256SUMS) || fail "the bundle is damaged" "copy it again"

echo "unpacking into $target"
mkdir -p "$target" "$cache/images" "$cache/models"
tar -C "$target" --strip-components=1 -xzf "$bundle/source.tar.gz"
for file in "$bundle"/images/*.tar.gz; do
    [ -e "$file" ] || continue
    name=$(basename "$file" .tar.gz)
    [ -d "$cache/images/$name" ] || { rm -rf "$cache/images/.$name"; mkdir "$cache/images/.$name"
        tar -C "$cache/images/.$name" -xzf "$file" --no-same-owner --exclude='*/dev/*'
        mv "$cache/images/.$name/$name" "$cache/images/$name"; rmdir "$cache/images/.$name"; }
done
for file in "$bundle"/images/*.sif; do [ -e "$file" ] && cp "$file" "$cache/images/"; done
for file in "$bundle"/models/*.tar; do [ -e "$file" ] && tar -C "$cache/models" -xf "$file"; done

echo "installing $(ls "$bundle"/wheels/*.whl | wc -l) packages"
[ -x "$target/.venv/bin/python" ] || "$python" -m venv "$target/.venv"
pip="$target/.venv/bin/python -m pip install --quiet --no-input --no-index --find-links $bundle/wheels"
$pip --no-deps setuptools wheel
# With its dependencies: a torch that is no CPU build cannot be imported without the libraries it names.
$pip torch
$pip --no-deps -r "$bundle/wheels/constraints.txt"
$pip --no-deps --no-build-isolation -e "$target"

echo "looking whether everything is there"
cd "$target"
COMPUTERRL_CACHE=$cache .venv/bin/computerrl doctor || echo "not everything is: see the rows that say missing"
echo "ready: cd $target; .venv/bin/computerrl train configs/smoke.yaml"
