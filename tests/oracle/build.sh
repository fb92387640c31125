#!/usr/bin/env bash
# Builds the oracle into a cache folder outside the repository and prints the program's path. Needs Go alone; does nothing
# when this very module was built there before (the stamp holds its hash).
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
version="$(sed -n 's/^[[:space:]]*k8s\.io\/kubernetes \(v[0-9.]*\)$/\1/p' "$here/go.mod")"
folder="${XDG_CACHE_HOME:-$HOME/.cache}/multisched/oracle/$version"
program="$folder/oracle"
stamp="$folder/.stamp"

find_go() {
    local candidate
    for candidate in "$(command -v go || true)" "${GOROOT:-/nowhere}/bin/go" /usr/local/go/bin/go /usr/lib/go/bin/go \
        /usr/lib/go-*/bin/go "$HOME"/go/bin/go "$HOME"/.local/go/bin/go "$HOME"/sdk/go*/bin/go /opt/homebrew/bin/go; do
        if [ -x "$candidate" ]; then
            echo "$candidate"
            return
        fi
    done
    echo "oracle: no Go found; install Go 1.21 or newer (https://go.dev/dl) or put it on the PATH" >&2
    return 1
}

fingerprint() {
    (cd "$here" && cat go.mod go.sum build.sh ./*.go | cksum | tr ' ' '-')
}

build() {
    local go building
    go="$(find_go)"
    mkdir -p "$folder"
    building="$(mktemp -d "$folder/.building.XXXXXX")"
    # shellcheck disable=SC2064  # the folder of this run, known now
    trap "rm -rf '$building'" EXIT
    echo "oracle: building kube-scheduler $version in $folder (four minutes on two cores, seconds after the control plane)" >&2
    # The flags of tests/real/controlplane/build.sh: what both need is compiled once.
    (cd "$here" && CGO_ENABLED=0 GOFLAGS='-mod=readonly -buildvcs=false' GOWORK=off \
        nice "$go" build -trimpath -ldflags '-s -w' -o "$building/oracle" .) >&2
    mv -f "$building/oracle" "$program"
    fingerprint >"$stamp"
}

if ! { [ -x "$program" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ]; }; then build; fi
echo "$program"
