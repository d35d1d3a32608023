#!/usr/bin/env bash
# Comparisons of others' code on a GPU host:  benchmarks/gpu_arms.sh STORE NAME..
#   versions   Liger 0.7.0 against 0.8.5, 56 cells: both norms, forward and backward (WHEELS: a folder with both wheels)
#   pull       Liger#1187, a new backward of the fused norm, base against head, 24 cells of both norms (PULL: a folder with
#              `base` and `head`, which the operator makes of a clone:
#              for v in base:2bf7117b head:b7025a70; do mkdir -p PULL/${v%:*} && git archive ${v#*:} src | tar x -C PULL/${v%:*}; done)
#   packed     rows packed into a program against one row a program: the pattern of ROCm/TransformerEngine#615 on our
#              kernels, over its shapes and some beside them.  8192x4096 is where it made TransformerEngine's slower
#   quack, torch_compile   cells that benchmarks.confirm compared with that peer: ours against it, as farm ab compares
# Prints each verdict and its rows, and a table last.  LIMIT=SECONDS (540) for all of them.  Needs torch and triton, and
# for `quack` that, importable by python3.  About 2 minutes each.  BACKEND names another than cuda.
set -u
store=$1 python=${PYTHON:-python3} backend=${BACKEND:-cuda} wheels=${WHEELS:-.}
shift
export PYTHONUNBUFFERED=1 FARM_ADDRESS=${ADDRESS:-inline} FARM_STORE=$store
mkdir -p "$store"
norm() {  # NAME OP SHAPES DTYPE OPERATION
  case $backend in cpu|sim) set -- "$1" "$2" '{rows: 4, hidden: [128, 256]}' "${@:4}" ;; esac
  printf 'name: %s\nop: %s\naxes: {shape: [%s], dtype: %s, operation: %s}\nproviders: {farm: {}, liger: {}, quack: {}, torch_compile: {}}\n' "$@"
  [ "$backend" = sim ] && echo 'sim: {default: {time_us: 10, noise: 0.002, process_noise: 0.002}}'
  return 0
}
for name in "$@"; do
  file=$store/$name.yaml
  case $name in
    versions)
      shapes='{rows: 4096, hidden: [1024, 4096, 8192, 16384]}, {rows: 2048, hidden: [512, 2048]}, {rows: 32768, hidden: 128}'
      { norm a rms_norm "$shapes" '[bfloat16, float32]' '[forward, backward]'; echo ---
        norm b fused_add_rms_norm "$shapes" '[bfloat16, float32]' '[forward, backward]'; } > "$file"
      words=(--select provider=liger --subject docs/examples/liger/farm.yaml
        --a "wheel=$wheels/liger_kernel-0.7.0-py3-none-any.whl" --b "wheel=$wheels/liger_kernel-0.8.5-py3-none-any.whl") ;;
    pull)
      repo=$store/pull
      if [ ! -d "$repo/.git" ]; then
        for arm in base head; do
          [ -d "${PULL:-}/$arm/src/liger_kernel" ] || { echo "gpu_arms.sh: ${PULL:-PULL}/$arm/src/liger_kernel is missing; see the head of this file" >&2; exit 2; }
          mkdir -p "$repo" && rm -rf "$repo/src" && cp -r "$PULL/$arm/src" "$repo/src" && git -C "$repo" init -q &&
            git -C "$repo" add -A && git -C "$repo" -c user.name=farm -c user.email=farm@localhost commit -qm "$arm" &&
            git -C "$repo" tag -f "$arm" > /dev/null || exit 2
        done
      fi
      subject=$store/subject  # what docs/examples/liger says of a release, of a repository's files
      mkdir -p "$subject" && cp docs/examples/liger/farm_adapters.py "$subject"
      printf '%s\n' 'farm: 1' 'subject: liger' 'overlay: {path: src, modules: [liger_kernel]}' 'providers:' '  liger:' '    ops:' \
        '      rms_norm: {call: "farm_adapters:rms_norm"}' \
        '      fused_add_rms_norm: {call: "farm_adapters:fused_add_rms_norm"}' > "$subject/farm.yaml"
      shapes='{rows: 2048, hidden: [1024, 4096, 8192]}'
      { norm a rms_norm "$shapes" '[bfloat16, float32]' '[forward, backward]'; echo ---
        norm b fused_add_rms_norm "$shapes" '[bfloat16, float32]' '[forward, backward]'; } > "$file"
      words=(--select provider=liger --repo "$repo" --subject "$subject/farm.yaml"
        --a revision=base --b revision=head) ;;
    packed)
      norm a rms_norm '{rows: [32767, 32768], hidden: 128}, {rows: 8192, hidden: [128, 1024, 4096]}' bfloat16 '[forward, backward]' |
        sed 's/farm: {}/farm: {mode: [static_persistent, row_packed]}/' > "$file"
      words=(--a provider=farm,mode=static_persistent --b provider=farm,mode=row_packed) ;;
    quack)
      { norm a rms_norm '{rows: 8192, hidden: 131072}' bfloat16 forward; echo ---
        norm b fused_add_rms_norm '{rows: 8192, hidden: 131072}' bfloat16 forward; echo ---
        norm c fused_add_rms_norm '{rows: 4096, hidden: 16384}, {rows: 8192, hidden: 8192}' float32 backward; echo ---
        norm d rms_norm '{rows: 4096, hidden: 16384}' float32 backward; } > "$file"
      words=(--a provider=farm --b provider=quack) ;;
    torch_compile)
      { norm a rms_norm '{rows: 4096, hidden: 16384}' float32 forward; echo ---
        norm b rms_norm '{rows: 8192, hidden: 32768}' bfloat16 forward; } > "$file"
      words=(--a provider=farm --b provider=torch_compile) ;;
    *) echo "gpu_arms.sh: $name is none of versions, pull, packed, quack, torch_compile" >&2; exit 2 ;;
  esac
  begun=$SECONDS left=$((${LIMIT:-540} - SECONDS))
  [ "$left" -lt 20 ] && { echo "$name: not begun, $left s were left" >> "$store/table.txt"; continue; }
  timeout --preserve-status -s INT -k 20 "$left" "$python" -m farm ab "$file" --backend "$backend" "${words[@]}" --run-id "$name" \
    > "$store/$name.txt" 2> >(tee "$store/$name.err" | tail -4 | cut -c1-250 >&2)
  code=$?
  cut -c1-220 "$store/$name.txt"
  echo "$name: $((SECONDS - begun)) s, exit $code, $(head -1 "$store/$name.txt"); $(grep -m1 '^times' "$store/$name.txt")" >> "$store/table.txt"
done
echo; cat "$store/table.txt"
