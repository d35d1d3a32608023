#!/usr/bin/env bash
# What an author's tools say of three planted faults, on a GPU host:  benchmarks/gpu_author.sh STORE
#   an uncoalesced load and a low occupancy by farm profile, an out-of-bounds store by farm run --sanitize
# Needs torch and triton importable by python3, ncu and compute-sanitizer; where one of them is missing or refuses, its
# line of the table, printed last, is the sentence that the farm says then.  Takes about 3 minutes.
set -u
store=$1 python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 FARM_ADDRESS=inline FARM_STORE=$store
farm() { "$python" -m farm "$@"; }

mkdir -p "$store"
cat > "$store/planted.yaml" <<'EOF'
name: planted
op: rms_norm
axes: {shape: [{rows: 4096, hidden: 1024}], dtype: float32, operation: no-grad-forward}
providers: [torch]
EOF
words=(--backend cuda --devices 1 --no-page)
for name in uncoalesced low_occupancy out_of_bounds; do words+=(--provider "$name=benchmarks.planted_author:$name"); done

nvidia-smi --query-gpu=index,uuid,name,driver_version --format=csv
for tool in ncu compute-sanitizer; do command -v "$tool" && "$tool" --version | tail -2; done
farm run "$store/planted.yaml" "${words[@]}" --run-id plain 2>&1 | tail -12 | cut -c1-250
for name in uncoalesced low_occupancy; do
  farm profile "cuda/rms_norm/$name" --run plain > "$store/$name.txt" 2> "$store/$name.err"
  echo "exit $?" >> "$store/$name.err"
  cat "$store/$name.txt"
done
farm run "$store/planted.yaml" "${words[@]}" --select provider=out_of_bounds --sanitize --run-id sanitized 2>&1 |
  tee "$store/sanitized.txt" | tail -12 | cut -c1-400
farm profile cuda/rms_norm/low_occupancy --run plain --asm | head -20

echo; echo "fault           what is said"
for name in uncoalesced low_occupancy; do
  said=$(grep -m1 limiter "$store/$name.txt" || grep -v '^exit' "$store/$name.err" | tail -1)
  printf '%-15s %s (%s)\n' "$name" "$said" "$(tail -1 "$store/$name.err")"
done
printf '%-15s %s\n' out_of_bounds "$(grep -m1 -E 'memcheck: |^farm run: ' "$store/sanitized.txt" || tail -1 "$store/sanitized.txt")"
