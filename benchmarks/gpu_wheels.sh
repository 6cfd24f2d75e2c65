#!/bin/sh
# Collects, as wheels, what benchmarks/gpu.py needs beside torch and transformers, for a machine without a network:
#
#     sh benchmarks/gpu_wheels.sh FOLDER [PYTHON_VERSION]      (3.12 by default; Linux on x86-64)
#
# and there:
#
#     python -m pip install --no-index --no-deps --target site FOLDER/*.whl
#     PYTHONPATH=site python benchmarks/gpu.py       (with the files beside it)
#
# numpy and the rest of what torch and transformers ask for are expected there. Fails above 60 MB.
set -eu

folder=${1:?"usage: sh benchmarks/gpu_wheels.sh FOLDER [PYTHON_VERSION]"}
version=${2:-3.12}
checkout=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
python=${PYTHON:-python3}
most=60000000

# What gpu.py imports, and what these import when they are imported; versions are those that the tests run with.
packages="transformer-lens accelerate psutil einops jaxtyping wadler-lindig lazy-loader scipy pandas python-dateutil six"

platforms=""
for glibc in 2_28 2_27 2_24 2_17 2_12 2_5 1; do platforms="$platforms --platform manylinux_${glibc}_x86_64"; done
platforms="$platforms --platform manylinux2014_x86_64 --platform manylinux1_x86_64"

mkdir -p "$folder"
for package in $packages; do
    pinned=$(grep -i "^$package==" "$checkout/constraints.txt" || echo "$package")
    # shellcheck disable=SC2086 - a list of options
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version "$version" \
        $platforms --dest "$folder" "$pinned"
done

# This package itself, from the checkout.
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$checkout"

total=$(cat "$folder"/*.whl | wc -c)
echo "$(ls "$folder"/*.whl | wc -l) wheels, $total bytes"
test "$total" -le "$most" || { echo "more than $most bytes" >&2; exit 1; }
