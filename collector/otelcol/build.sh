#!/usr/bin/env bash
# Builds `otelcol` (builder.yaml) and, when asked, `telemetrygen` with Go modules into a cache folder, and prints where it is:
#
#   collector/otelcol/build.sh                  the Collector; three minutes on two cores, nothing when it is there
#   collector/otelcol/build.sh telemetrygen     the Collector's load generator, a client for tests
#   collector/otelcol/build.sh --path [NAME]    only say where it would be; exit 1 when it is not there
#
# OTELCOL_BINARY or TELEMETRYGEN_BINARY names a binary to use instead; OTEL_BRIDGE_CACHE the folder (~/.cache/otel-bridge).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${OTEL_BRIDGE_CACHE:-$HOME/.cache/otel-bridge}
version=$(sed -n 's/^  version: *\([0-9.]*\).*/\1/p' "$here/builder.yaml")
telemetrygen=github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen@v0.157.0
needs_go=1.25 # what the pinned modules ask for in their go.mod
fetched_go=1.26.8

fail() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }

# The Go toolchain: the one on the machine where it is new enough, else one from the module proxy, which the one on the
# machine fetches and checks. From 1.21 on Go does that by itself; before, as Debian 12's 1.19, as any other module.
choose_go() {
  command -v go >/dev/null 2>&1 || fail "no go on PATH; expected Go $needs_go or any other: install it, or name a ready binary by OTELCOL_BINARY"
  local found
  found=$(GOTOOLCHAIN=local go env GOVERSION | sed 's/^go//')
  at_least "$needs_go" "$found" && return 0
  if at_least 1.21 "$found"; then
    export GOTOOLCHAIN="go$fetched_go+auto"
    return 0
  fi
  echo "Go $found found, $needs_go needed: fetching $fetched_go" >&2
  local root
  root=$(cd "$work" && go mod download -json "golang.org/toolchain@v0.0.1-go$fetched_go.$(go env GOOS)-$(go env GOARCH)" |
    sed -n 's/^.*"Dir": "\(.*\)",*$/\1/p')
  [ -d "$root" ] || fail "Go $fetched_go cannot be fetched; install Go $needs_go or newer"
  cp -R "$root" "$work/go" # modules are read-only, and their files are not programs
  chmod -R u+w "$work/go"
  chmod +x "$work"/go/bin/* "$work"/go/pkg/tool/*/*
  export GOTOOLCHAIN=local PATH=$work/go/bin:$PATH
  unset GOROOT
}

at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n1)" = "$1" ]; }

# The sum over the manifest alone: a change of this script makes no new binary.
digest() { { sha256sum "$1" 2>/dev/null || shasum -a 256 "$1"; } | cut -c1-16; }

build_otelcol() {
  GOBIN=$PWD/bin go install "go.opentelemetry.io/collector/cmd/builder@v$version"
  ./bin/builder --config="$here/builder.yaml"
  mv _build/otelcol otelcol
}

build_telemetrygen() {
  GOBIN=$PWD go install "$telemetrygen"
}

only_path=''
[ "${1:-}" = --path ] && { only_path=yes; shift; }
name=${1:-otelcol}
case $name in
  otelcol) binary=${OTELCOL_BINARY:-} place=$cache/otelcol/$(digest "$here/builder.yaml") ;;
  telemetrygen) binary=${TELEMETRYGEN_BINARY:-} place=$cache/telemetrygen/${telemetrygen##*@} ;;
  *) fail "$name: expected otelcol or telemetrygen" ;;
esac
if [ -n "$binary" ]; then
  [ -x "$binary" ] || fail "$binary is not a program; unset the variable to build one"
  echo "$binary"
  exit 0
fi
binary=$place/$name
if [ -n "$only_path" ]; then
  echo "$binary"
  [ -x "$binary" ]
  exit
fi
[ -x "$binary" ] && { echo "$binary"; exit 0; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
choose_go
cd "$work"
export CGO_ENABLED=0 # one file without a C library: it runs in any container
"build_$name" >&2
mkdir -p "$place"
mv "$name" "$binary.$$" # put in place by rename: two builds at once, or a killed one, leave a whole binary or none
mv "$binary.$$" "$binary"
echo "$binary"
