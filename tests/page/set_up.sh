#!/usr/bin/env bash
# Installs what the tests of the page need: Debian's Chromium, if no browser is on the PATH (as root), and axe-core, pinned by
# hash in package-lock.json, into a cache folder outside the repository. Does nothing if both are there. Prints the folder.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="${XDG_CACHE_HOME:-$HOME/.cache}/multisched/page"

if ! command -v chromium chromium-browser google-chrome >/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "page: no Chromium on the PATH; install it (apt-get install chromium), or run this as root on Debian" >&2
        exit 1
    fi
    echo "page: installing Debian's Chromium, once" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null
fi

if ! cmp -s "$here/package-lock.json" "$folder/package-lock.json" || [ ! -f "$folder/node_modules/axe-core/axe.min.js" ]; then
    command -v npm >/dev/null || { echo "page: no npm on the PATH; install Node.js" >&2; exit 1; }
    mkdir -p "$folder"
    cp "$here/package.json" "$folder/"
    rm -f "$folder/package-lock.json"
    cp "$here/package-lock.json" "$folder/package-lock.json"
    (cd "$folder" && npm ci --silent --ignore-scripts --no-audit --no-fund >&2)
fi
echo "$folder"
