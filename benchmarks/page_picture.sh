#!/usr/bin/env bash
# A picture of a page, as a headless Chromium paints it; README's is made so from the page of a run:
#   farm dashboard build RUN --out STORE && benchmarks/page_picture.sh STORE/pages/run-RUN.html docs/run-page.png
# Usage: page_picture.sh PAGE.html OUT.png [WIDTH HEIGHT], pixels, 1000 x 1130 unless said otherwise.
set -euo pipefail
if [ $# -ne 2 ] && [ $# -ne 4 ]; then sed -n 2,4p "$0" >&2; exit 2; fi
[ -f "$1" ] || { echo "page_picture: $1: there is no such page; farm dashboard build RUN makes it" >&2; exit 2; }
for browser in chromium chromium-browser google-chrome none; do command -v "$browser" >/dev/null && break; done
[ "$browser" != none ] || { echo "page_picture: no Chromium on PATH; install the package chromium" >&2; exit 2; }
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
made="$profile/page.png"
timeout 60 "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$profile" \
    --window-size="${3:-1000},${4:-1130}" --screenshot="$made" "file://$(realpath "$1")" >/dev/null 2>&1 || true
[ -s "$made" ] || { echo "page_picture: $browser made no picture of $1 within 60 s; run it by hand to see why" >&2; exit 3; }
cp "$made" "$2"
echo "$2: $(wc -c <"$2") bytes"
