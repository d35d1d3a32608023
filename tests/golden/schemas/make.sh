#!/bin/sh
# Writes schema-N.tar.gz with the farm of a checkout that wrote this schema:   make.sh N CHECKOUT PYTHON
# PYTHON: an interpreter that imports that checkout's farm.  Needs root (for a host named `node`), no device, 30 s.
set -eu
n=$1 checkout=$(realpath "$2") python=$3 here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cp -r "$checkout/matrices" "$here/small.yaml" .
farm() {
    env -u FARM_STORE FARM_CACHE="$folder/cache" FARM_LOCKS="$folder/locks" PYTHONPATH="$checkout" unshare --uts sh -c \
        'hostname node && exec "$0" -c "import sys; from farm.cli import main; sys.exit(main())" "$@"' "$python" "$@"
}
run() { farm run "$@" --address inline --devices 1 --no-page --out store || [ $? -eq 1 ]; }

run small.yaml --backend cpu,sim --run-id "schema-$n"
if [ "$n" -ge 2 ]; then
    farm compile matrices/smoke.yaml --target sm_90 --workers 1 --no-page --out store --run-id "schema-$n-compiled" \
        --select hidden=1000,dtype=bfloat16,mode=auto,op=rms_norm
fi
if [ "$n" -ge 4 ]; then  # parts of a plan, to be merged
    farm plan small.yaml --backend cpu,sim --out plan.json
    for part in cpu sim; do run --plan plan.json --target "$part" --run-id "schema-$n-$part"; done
fi
find store/runs -name '*.txt' -exec sed -i "s#$checkout/##g" {} +  # in tracebacks
if grep -rE "$checkout|$folder|$(hostname)\"" store/runs; then
    echo "these files name this host" >&2
    exit 1
fi
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C store/runs -cf - . | gzip -9n > "$here/schema-$n.tar.gz"
ls -l "$here/schema-$n.tar.gz"
