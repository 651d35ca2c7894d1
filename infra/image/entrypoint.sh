#!/bin/sh
# The image's entry point: vedette, with the keys it was given.
#
# Keys come as files, one folder for each secret (Cloud Run mounts them so): whatever lies in
# VEDETTE_KEYS/*/ is copied into the state folder, for its owner alone, unless it is there already:
# a state folder that outlives the container may have rotated its key since.
set -eu
umask 077
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
state=${VEDETTE_STATE:-}
keys=${VEDETTE_KEYS:-/run/vedette/keys}

for file in "$keys"/*/*; do
  [ -f "$file" ] || continue
  if [ -z "$state" ]; then
    echo "entrypoint: keys are given and VEDETTE_STATE is not" >&2
    exit 2
  fi
  name=$(basename -- "$file")
  if [ ! -e "$state/$name" ]; then
    mkdir -p "$state"
    # Whole or not there: what was cut off would be taken for a key.
    cp "$file" "$state/.$name.part"
    mv "$state/.$name.part" "$state/$name"
  fi
done
exec "$here/venv/bin/vedette" "$@"
