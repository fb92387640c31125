#!/usr/bin/env bash
# Builds helm, kubeconform and old versions of kustomize, which the tests of `deploy/` run, into a cache folder outside the
# repository, and prints that folder. It also copies the Prometheus Operator's definitions of ServiceMonitor and
# PrometheusRule from its module. Needs only Go. Does nothing if the same modules were built there before (the stamp holds
# their hash). Each version of kustomize has its own module file, because one module can require only one version.
#
#   build.sh           build what is missing, print the folder of the binaries
#   build.sh --where   only print the folder
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="${XDG_CACHE_HOME:-$HOME/.cache}/multisched/tools"
stamp="$folder/.stamp"
kustomizes=("$here"/kustomize/*.mod)
kustomizes=("${kustomizes[@]##*/}")
kustomizes=("${kustomizes[@]%.mod}")
programs=(helm kubeconform "${kustomizes[@]/#/kustomize-}")
operator=github.com/prometheus-operator/prometheus-operator@v0.85.0
operator_sum=h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=
definitions=(servicemonitors prometheusrules)

find_go() {
    local candidate
    for candidate in "$(command -v go || true)" "${GOROOT:-/nowhere}/bin/go" /usr/local/go/bin/go /usr/lib/go/bin/go \
        /usr/lib/go-*/bin/go "$HOME"/go/bin/go "$HOME"/.local/go/bin/go "$HOME"/sdk/go*/bin/go /opt/homebrew/bin/go; do
        if [ -x "$candidate" ]; then
            echo "$candidate"
            return
        fi
    done
    echo "tools: no Go found; install Go 1.21 or newer (https://go.dev/dl) or put it on the PATH" >&2
    return 1
}

# What decides the binaries: the modules and this script (its flags).
fingerprint() {
    (cd "$here" && cat go.mod go.sum build.sh kustomize/* | cksum | tr ' ' '-')
}

is_built() {
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ] || return 1
    local program
    for program in "${programs[@]}"; do [ -x "$folder/$program" ] || return 1; done
}

# One field of what `go mod download -json` says.
field() {
    sed -n "s/^[[:space:]]*\"$1\": \"\(.*\)\",\{0,1\}$/\1/p"
}

fetch_definitions() {
    local told
    told="$(cd "$2" && GOWORK=off GOFLAGS= "$1" mod download -json "$operator")"
    if [ "$(field Sum <<<"$told")" != "$operator_sum" ]; then
        echo "tools: $operator is not what it was: $told" >&2
        return 1
    fi
    for name in "${definitions[@]}"; do
        install -m 0644 "$(field Dir <<<"$told")/example/prometheus-operator-crd/monitoring.coreos.com_$name.yaml" "$folder/"
    done
}

build() {
    local go building flags version name environment=(CGO_ENABLED=0 "GOFLAGS=-mod=readonly -buildvcs=false" GOWORK=off)
    go="$(find_go)"
    mkdir -p "$folder"
    building="$(mktemp -d "$folder/.building.XXXXXX")"
    # shellcheck disable=SC2064  # the folder of this run, known now
    trap "rm -rf '$building'" EXIT
    # helm takes the Kubernetes version of its clients for that of the cluster it renders for.
    version="$(sed -n 's/^[[:space:]]*k8s\.io\/client-go v0\.\([0-9]*\)\.[0-9]*.*$/\1/p' "$here/go.mod")"
    flags="-s -w -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=$version"
    flags+=" -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=$version"
    echo "tools: building ${programs[*]} in $folder (some minutes on two cores)" >&2
    (cd "$here" && env "${environment[@]}" nice "$go" build -trimpath -ldflags "$flags" -o "$building/" \
        helm.sh/helm/v3/cmd/helm github.com/yannh/kubeconform/cmd/kubeconform) >&2
    for name in "${kustomizes[@]}"; do
        (cd "$here" && env "${environment[@]}" nice "$go" build -modfile="kustomize/$name.mod" -trimpath -ldflags "-s -w" \
            -o "$building/kustomize-$name" sigs.k8s.io/kustomize/kustomize/v5) >&2
    done
    for name in "${programs[@]}"; do mv -f "$building/$name" "$folder/$name"; done
    fetch_definitions "$go" "$building"
    fingerprint >"$stamp"
}

if [ "${1:-}" != --where ] && ! is_built; then build; fi
echo "$folder"
