#!/bin/sh
# Installs by package name what building and running needs; says nothing when
# nothing is missing. Debian and Ubuntu; elsewhere it names what to install and
# ends with 1. It never asks and may be run again at any time. `--tests` adds
# what only the tests need: rustfmt, clippy, nft, the parser of Prometheus,
# decoders and players of other people's, a browser, and BIRD, nginx and
# Icecast, whose services stay off.
set -eu
cd "$(dirname "$0")/.."
. tools/rust.sh
PATH="$PATH:/usr/sbin:/sbin"
export PATH

APT_SECONDS_MAX=1800  # a slow mirror with 500 MB to fetch
RUSTUP_SECONDS_MAX=60 # where its server cannot be reached, it would try for minutes

say() { echo "setup: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
fail() {
    say "$*"
    exit 1
}

# Prometheus' own parser of OpenMetrics, which reads what a node says to it.
have_prometheus_parser() {
    /usr/bin/python3 -c 'import prometheus_client.openmetrics' 2>/dev/null
}

# What services/transcode/tests/viewer.rs looks for.
have_browser() {
    have chromium || have chromium-browser || have google-chrome || have google-chrome-stable
}

# Names of what is missing, one a line: "tool" for programs and libraries.
missing_tools() {
    have clang-19 || have clang || echo clang
    for tool in gcc make pkg-config curl git ip ping iperf3 ethtool tcpdump; do
        have "$tool" || echo "$tool"
    done
    [ -z "$for_tests" ] || have nft || echo nft
    [ -z "$for_tests" ] || have bird || echo bird
    [ -z "$for_tests" ] || have openssl || echo openssl
    [ -z "$for_tests" ] || have brotli || echo brotli
    [ -z "$for_tests" ] || have zstd || echo zstd
    for tool in ffmpeg mpg123 wrk nginx icecast2; do
        [ -z "$for_tests" ] || have "$tool" || echo "$tool"
    done
    [ -z "$for_tests" ] || have_browser || echo chromium
    [ -z "$for_tests" ] || have_prometheus_parser || echo prometheus-parser
    if have pkg-config; then
        pkg-config --exists libelf || echo libelf
        pkg-config --exists zlib || echo zlib
    else
        echo libelf
        echo zlib
    fi
    [ -e /usr/include/stdlib.h ] || echo libc-headers
    [ -e /usr/include/linux/bpf.h ] || echo linux-headers
    [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -d /etc/pki ] || echo ca-certificates
}

# What Rust itself lacks: "rust", "wasm32"; for the tests "rustfmt" and "clippy".
missing_rust() {
    if rust_find; then
        [ -z "$for_tests" ] || cargo fmt --version >/dev/null 2>&1 || echo rustfmt
        [ -z "$for_tests" ] || cargo clippy --version >/dev/null 2>&1 || echo clippy
    else
        echo rust
        [ -z "$for_tests" ] || printf "rustfmt\nclippy\n"
    fi
    rustup_has_wasm || debian_has_wasm || echo wasm32
}

rustup_has_wasm() {
    sysroot=$(rustc --print sysroot 2>/dev/null) && [ -d "$sysroot/lib/rustlib/wasm32-unknown-unknown/lib" ]
}

# Debian ships the library's source: `tam build` compiles it for wasm32.
debian_has_wasm() {
    [ -x /usr/bin/cargo ] && [ -x /usr/bin/wasm-ld-19 ] && [ -d /usr/lib/rustlib/src/rust/library ] &&
        [ "$(rust_minor /usr/bin/rustc)" -ge "$(rust_minimum)" ]
}

# Through rustup first: it fits the toolchain that is used. Its failure is no
# error, Debian's packages come next.
try_rustup() {
    have rustup && rust_find || return 0
    case "$(command -v cargo)" in /usr/bin/*) return 0 ;; esac
    for part in $(missing_rust); do
        case $part in
        wasm32) set -- target add wasm32-unknown-unknown ;;
        rustfmt | clippy) set -- component add "$part" ;;
        *) continue ;;
        esac
        say "rustup $* (at most $RUSTUP_SECONDS_MAX s)"
        timeout "$RUSTUP_SECONDS_MAX" rustup "$@" >/dev/null 2>&1 || say "rustup $* did not succeed"
    done
}

has_candidate() {
    apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'
}

# Debian's package for each missing thing.
debian_package() {
    case $1 in
    clang) if has_candidate clang-19; then echo clang-19; else echo clang; fi ;;
    ip) echo iproute2 ;;
    nft) echo nftables ;;
    bird) echo bird2 ;;
    prometheus-parser) echo python3-prometheus-client ;;
    ping) echo iputils-ping ;;
    libelf) echo libelf-dev ;;
    zlib) echo zlib1g-dev ;;
    libc-headers) echo libc6-dev ;;
    linux-headers) echo linux-libc-dev ;;
    rust) echo rustc-web cargo-web ;;
    rustfmt) echo rustfmt-web ;;
    clippy) echo rust-web-clippy ;;
    wasm32) echo rustc-web cargo-web rust-web-src lld-19 ;;
    *) echo "$1" ;;
    esac
}

# Runs apt-get as root; nothing is asked, what it says goes to a log.
apt() {
    if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo -n"; fi
    # shellcheck disable=SC2086 # an empty $as_root is no word
    timeout "$APT_SECONDS_MAX" $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1 </dev/null &
    job=$!
    seconds=0
    while kill -0 "$job" 2>/dev/null; do
        sleep 1
        seconds=$((seconds + 1))
        [ $((seconds % 15)) -ne 0 ] || say "still running, $seconds s: $(tail -n 1 "$log" | cut -c 1-100)"
    done
    wait "$job"
}

# Only the tests run these servers, in namespaces of their own: Debian would start
# one on this machine with its package.
keep_off() {
    have systemctl || return 0
    if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo -n"; fi
    $as_root systemctl mask "$1" >/dev/null 2>&1 || say "the service $1 may start with its package; systemctl disable --now $1 ends it"
}

install_with_apt() {
    if [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; then
        say "fetching the package lists"
        apt update || say "the package lists could not be refreshed; going on with the ones that are there"
    fi
    packages=""
    for thing in $1; do
        for package in $(debian_package "$thing"); do
            case " $packages " in *" $package "*) ;; *) packages="$packages $package" ;; esac
        done
    done
    for package in $packages; do
        has_candidate "$package" && continue
        case $package in
        *-web* | lld-19) fail "this release has no package $package; install Rust 1.$(rust_minimum) or newer with rustup (https://rustup.rs), then: rustup target add wasm32-unknown-unknown" ;;
        esac
    done
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null ||
        fail "these are missing, and sudo would have to ask; as root: apt-get install$packages"
    say "installing:$packages"
    for package in $packages; do
        case $package in
        bird2) keep_off bird ;;
        nginx | icecast2) keep_off "$package" ;;
        esac
    done
    # shellcheck disable=SC2086 # one word per package
    apt install --no-install-recommends $packages && return 0
    tail -n 15 "$log" >&2
    fail "apt-get could not install them; as root: apt-get install$packages"
}

name_for_others() {
    say "this is no Debian or Ubuntu; install these and run it again:" "$(echo "$1" | tr '\n' ' ')"
    say "  Fedora: dnf install clang lld glibc-devel kernel-headers elfutils-libelf-devel zlib-devel pkgconf-pkg-config gcc make iproute iputils curl iperf3 ethtool tcpdump git ca-certificates rust cargo rustfmt clippy rust-std-static-wasm32-unknown-unknown"
    say "  Arch: pacman -S clang lld linux-api-headers libelf zlib pkgconf gcc make iproute2 iputils curl iperf3 ethtool tcpdump git ca-certificates rust rust-wasm"
    fail "Rust 1.$(rust_minimum) or newer is needed"
}

missing() {
    missing_tools
    missing_rust
}

main() {
    [ "$(uname -s)" = Linux ] || fail "Tamandua runs on Linux only; this is $(uname -s)"
    [ -n "$(missing)" ] || return 0
    try_rustup
    found=$(missing)
    [ -n "$found" ] || return 0
    have apt-get || name_for_others "$found"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    install_with_apt "$found"
    found=$(missing)
    [ -z "$found" ] || fail "still missing after the installation:" "$(echo "$found" | tr '\n' ' ')"
    say "done"
}

case "${1-}" in
"") for_tests="" ;;
--tests) for_tests=yes ;;
*)
    say "unknown argument $1; usage: tools/setup.sh [--tests]"
    exit 2
    ;;
esac
main
