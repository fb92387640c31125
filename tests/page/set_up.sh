#!/usr/bin/env bash
# Installs what the tests of the page need: Debian's Chromium and npm, where they are missing (as root), and axe-core, pinned by
# hash in package-lock.json, into a cache folder outside the repository. Does nothing if both are there. Prints the folder.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="${XDG_CACHE_HOME:-$HOME/.cache}/multisched/page"

wanted=()
command -v chromium chromium-browser google-chrome >/dev/null || wanted+=(chromium fonts-dejavu-core)
command -v npm >/dev/null || wanted+=(npm)
if [ "${#wanted[@]}" -gt 0 ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "page: install ${wanted[*]} (apt-get install), or run this as root on Debian" >&2
        exit 1
    fi
    echo "page: installing ${wanted[*]} from Debian, once" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${wanted[@]}" >/dev/null
fi

if ! cmp -s "$here/package-lock.json" "$folder/package-lock.json" || [ ! -f "$folder/node_modules/axe-core/axe.min.js" ]; then
    mkdir -p "$folder"
    cp "$here/package.json" "$folder/"
    rm -f "$folder/package-lock.json"
    cp "$here/package-lock.json" "$folder/package-lock.json"
    (cd "$folder" && npm ci --silent --ignore-scripts --no-audit --no-fund >&2)
fi
echo "$folder"
