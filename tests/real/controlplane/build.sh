#!/usr/bin/env bash
# Builds the control plane that `make real` and `make bench` run into a cache folder outside the repository, and prints
# that folder. Needs Go alone; does nothing when this very module was built there before (the stamp holds its hash).
#
#   build.sh           build what is missing, print the folder of the binaries
#   build.sh --where   only print the folder
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
version="$(sed -n 's/^[[:space:]]*k8s\.io\/kubernetes \(v[0-9.]*\)$/\1/p' "$here/go.mod")"
folder="${XDG_CACHE_HOME:-$HOME/.cache}/multisched/controlplane/$version"
stamp="$folder/.stamp"
programs=(kube-apiserver kube-controller-manager kube-scheduler kubectl etcd)

find_go() {
    local candidate
    for candidate in "$(command -v go || true)" "${GOROOT:-/nowhere}/bin/go" /usr/local/go/bin/go /usr/lib/go/bin/go \
        /usr/lib/go-*/bin/go "$HOME"/go/bin/go "$HOME"/.local/go/bin/go "$HOME"/sdk/go*/bin/go /opt/homebrew/bin/go; do
        if [ -x "$candidate" ]; then
            echo "$candidate"
            return
        fi
    done
    echo "controlplane: no Go found; install Go 1.21 or newer (https://go.dev/dl) or put it on the PATH" >&2
    return 1
}

# What decides the binaries: the modules, the programs and this script (its flags).
fingerprint() {
    (cd "$here" && cat go.mod go.sum build.sh cmd/*/main.go | cksum | tr ' ' '-')
}

is_built() {
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ] || return 1
    local program
    for program in "${programs[@]}"; do [ -x "$folder/$program" ] || return 1; done
}

build() {
    local go building flags name
    go="$(find_go)"
    mkdir -p "$folder"
    building="$(mktemp -d "$folder/.building.XXXXXX")"
    # shellcheck disable=SC2064  # the folder of this run, known now
    trap "rm -rf '$building'" EXIT
    flags="-s -w"
    for name in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X $name.gitVersion=$version -X $name.gitMajor=1 -X $name.gitMinor=$(cut -d. -f2 <<<"$version")"
    done
    echo "controlplane: building Kubernetes $version and etcd in $folder (six minutes on two cores)" >&2
    # CGO off: no C compiler needed, and the same static binaries as the release. One command: shared packages once.
    (cd "$here" && CGO_ENABLED=0 GOFLAGS='-mod=readonly -buildvcs=false' GOWORK=off \
        nice "$go" build -trimpath -ldflags "$flags" -o "$building/" ./cmd/...) >&2
    for name in "${programs[@]}"; do mv -f "$building/$name" "$folder/$name"; done
    fingerprint >"$stamp"
}

if [ "${1:-}" != --where ] && ! is_built; then build; fi
echo "$folder"
