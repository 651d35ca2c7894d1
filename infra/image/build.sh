#!/bin/sh
# Builds what the image holds: SOURCE (this project) into TARGET (a new folder).
#   infra/image/build.sh SOURCE TARGET
#
# The Dockerfile runs this, and so does a test, in a clean folder. TARGET stays where it is made:
# scripts of an environment carry its path. COMPILE=1 compiles all modules at once, for a quick
# start where nothing may be written later. PYTHON names the interpreter.
set -eu
source=$(CDPATH='' cd -- "$1" && pwd)
target=$2
python=${PYTHON:-python3}
export PYTHON="$python"
lock="$source/infra/image"
uv="$source/tools/uv"

mkdir -p "$target"
target=$(CDPATH='' cd -- "$target" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What runs: the pinned dependencies of the product and none of its development.
"$uv" venv --quiet --python "$python" "$target/venv"
"$uv" pip sync --quiet --python "$target/venv/bin/python" --require-hashes --no-build \
  "$lock/runtime.lock"

# The product itself, as a wheel, by a build environment that is thrown away.
"$uv" venv --quiet --python "$python" "$work/build"
"$uv" pip sync --quiet --python "$work/build/bin/python" --require-hashes --no-build \
  "$lock/build.lock"
(cd "$source" && "$work/build/bin/python" -m hatchling build -t wheel -d "$work/dist" >/dev/null)
"$uv" pip install --quiet --python "$target/venv/bin/python" --no-deps --no-index \
  "$work"/dist/vedette-*.whl
# -I: the one in TARGET, whatever the environment or this folder would have imported.
"$target/venv/bin/python" -I -m vedette.adapters.policy_engines.opa_wasm
if [ "${COMPILE:-}" = 1 ]; then "$target/venv/bin/python" -m compileall -q "$target/venv/lib"; fi

# The fleet as code, for whoever runs the image without mounting their own.
mkdir "$target/fleet"
for part in agents policies memory samples vedette.toml; do
  cp -R "$source/$part" "$target/fleet/$part"
done
find "$target/fleet" \( -name __pycache__ -o -name '.*_cache' -o -name .adk \) -type d -prune \
  -exec rm -rf {} +

cp "$lock/entrypoint.sh" "$target/entrypoint"
cp "$lock/healthy.py" "$target/healthy.py"
chmod 0755 "$target/entrypoint"
chmod -R a+rX "$target"
