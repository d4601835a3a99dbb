#!/usr/bin/env bash
# Runs the checks and the tests; the last line is "N passed, N failed, N skipped".
#
#   tools/test.sh            format, clippy, tidy, every test
#   tools/test.sh --peers    only the system tests: ping, curl, iperf3 through a node
#
# Ends with 1 when a check or a test failed, when the tests left something
# behind on this machine, or when one was skipped and TAM_ALLOW_SKIPS is empty.
# A test that this machine cannot run appends one line, "name: why", to the file
# that TAM_SKIPS names; cargo's "ignored" count as skipped too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/rust.sh
PATH="$PATH:/usr/sbin:/sbin"
rust_find || {
    echo "test: no Rust 1.$(rust_minimum) or newer; run tools/setup.sh" >&2
    exit 1
}

LINTS_MINOR=95 # lints differ by version: with another one clippy reports, but its warnings do not fail
SAMPLES="monitor touch firewall nat guard guard-limit flakeway compress reflector transcode"
OUTSIDE=$(ls sdk/rust/Cargo.toml services/*/Cargo.toml) # packages that the workspace leaves out

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
output=$scratch/output
export TAM_SKIPS=$scratch/skips
: >"$output"
: >"$TAM_SKIPS"
problems=()

step() { echo "== $*" >&2; }

# Runs one check; goes on after a failure, so that one run shows them all.
check() {
    local name=$1
    shift
    step "$name"
    "$@" || problems+=("$name")
}

# Runs one group of tests and keeps what cargo said for the sum.
tests() {
    local name=$1
    shift
    step "tests: $name"
    "$@" 2>&1 | tee -a "$output" || problems+=("tests: $name")
}

format() {
    cargo fmt --all --check || return
    for manifest in $OUTSIDE lab/filters/rust/Cargo.toml; do
        cargo fmt --check --manifest-path "$manifest" || return
    done
}

clippy() {
    local deny=()
    [ "$(rust_minor rustc)" -ne "$LINTS_MINOR" ] || deny=(-D warnings)
    cargo clippy --release --workspace --all-targets --quiet -- "${deny[@]}"
}

# What a run may leave: namespaces, pins, devices, processes of ours.
traces() {
    ip netns list 2>/dev/null | awk '/^tam-/ { print "namespace " $1 }'
    ls -d /sys/fs/bpf/tamandua/* 2>/dev/null || true
    ip -brief link show 2>/dev/null | awk '/^tam/ { print "device " $1 }'
    pgrep -x tam | sed 's/^/process /' || true
}

# What the tests run: the binary and the sample services.
build() {
    local name # check has one, too
    cargo build --release --workspace --quiet || return
    for name in $SAMPLES; do
        target/release/tam build "services/$name" || return
    done
}

# Without it there is nothing to test.
must_build() {
    check "build" build
    case " ${problems[*]} " in *" build "*) report || exit 1 ;; esac
}

# Tests that make namespaces and load BPF need root.
as_root() {
    [ "$(id -u)" = 0 ] && return
    local triple
    triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
    export "CARGO_TARGET_${triple}_RUNNER=sudo -n --preserve-env"
}

sum() {
    awk -v skips="$(grep -c . "$TAM_SKIPS" || true)" '
        /^test result: / { passed += $4; failed += $6; ignored += $8 }
        END { printf "%d %d %d\n", passed, failed, ignored + skips }' "$output"
}

report() {
    local passed failed skipped
    read -r passed failed skipped < <(sum)
    comm -13 "$scratch/before" <(traces | sort) >"$scratch/left"
    if [ -s "$scratch/left" ]; then
        problems+=("left behind: $(paste -sd ' ' "$scratch/left")")
    fi
    [ "$skipped" = 0 ] || [ -n "${TAM_ALLOW_SKIPS-}" ] || problems+=("skipped tests (TAM_ALLOW_SKIPS=1 allows them)")
    sed 's/^/skipped: /' "$TAM_SKIPS"
    [ ${#problems[@]} = 0 ] || printf 'failed: %s\n' "${problems[@]}"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ ${#problems[@]} = 0 ] && [ "$failed" = 0 ] && [ "$passed" != 0 ]
}

main() {
    traces | sort >"$scratch/before"
    as_root
    case ${1-} in
    "")
        check "cargo fmt --check" format
        check "cargo xtask tidy" cargo xtask tidy
        must_build
        check "cargo clippy" clippy
        tests workspace cargo test --release --workspace --exclude system --no-fail-fast
        for manifest in $OUTSIDE; do
            tests "$manifest" cargo test --release --manifest-path "$manifest" --target-dir target/samples --no-fail-fast
        done
        ;;
    --peers) must_build ;;
    *)
        echo "test: unknown argument $1; usage: tools/test.sh [--peers]" >&2
        exit 2
        ;;
    esac
    # One at a time: they measure and they fill both cores. With --workspace, so that
    # dependencies keep the features, and so the builds, of the tests above.
    tests system cargo test --release --workspace --test system --test intercepted --no-fail-fast -- --test-threads=1
    report
}

main "$@"
