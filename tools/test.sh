#!/usr/bin/env bash
# Runs the checks and the tests; the last line is "N passed, N failed, N skipped".
#
#   tools/test.sh            format, tidy, every test, and clippy beside the system tests
#   tools/test.sh --peers    only the system tests: ping, curl, iperf3 through a node
#
# Ends with 1 when a check or a test failed, when the tests left something
# behind on this machine, or when one was skipped and TAM_ALLOW_SKIPS is empty.
# A test that this machine cannot run appends one line, "name: why", to the file
# that TAM_SKIPS names; cargo's "ignored" count as skipped too. The seconds of each
# step and the slowest tests stand in front of the sum; they fail nothing.
#
# Random cases of property tests come from PROPTEST_RNG_SEED: the same in each run,
# unless it is set (tools/soak.sh draws one).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/rust.sh
PATH="$PATH:/usr/sbin:/sbin"
rust_find || {
    echo "test: no Rust 1.$(rust_minimum) or newer; run tools/setup.sh" >&2
    exit 1
}

LINTS_MINOR=95 # lints differ by version: with another one clippy reports, but its warnings do not fail
SAMPLES="monitor echo touch firewall nat guard guard-limit flakeway compress reflector transcode"
OUTSIDE=$(ls sdk/*/Cargo.toml services/*/Cargo.toml) # packages that the workspace leaves out

SYSTEM_JOBS=${SYSTEM_JOBS:-4} # system tests at a time: a node waits for its packets most of the time
SLOWEST=20                    # tests named at the end, of those that took over two seconds

scratch=$(mktemp -d)
lints= # process group of the lints while they run
trap '[ -z "$lints" ] || kill -- "-$lints"; rm -rf "$scratch"' EXIT
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-7051}
output=$scratch/output
seconds=$scratch/seconds # lines "SECONDS STEP"
: >"$seconds"
export TAM_SKIPS=$scratch/skips
: >"$output"
: >"$TAM_SKIPS"
problems=()

# Announces a step, and notes how long the one before it took.
step() {
    [ -z "${step_name-}" ] || echo "$((SECONDS - step_began)) $step_name" >>"$seconds"
    step_name=$1 step_began=$SECONDS
    [ -z "$1" ] || echo "== $1" >&2
}

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

# What stands before each test program: tests that make namespaces and load BPF need root.
as_root() {
    root=()
    [ "$(id -u)" = 0 ] || root=(sudo -n --preserve-env)
}

# Lists the system tests' programs, which it builds. With --workspace, so that dependencies keep the
# features, and so the builds, of the other tests.
system_programs() {
    cargo test --release --workspace --test system --test intercepted --no-run \
        --message-format=json-render-diagnostics | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}

# Runs system tests, so many at a time. Not by Cargo, which would wait for the lints beside them. The
# variable lets the test library of a stable Rust print the time of each test.
system() {
    local jobs=$1 program failed=0
    shift
    for program in $programs; do
        (cd lab/system && "${root[@]}" env RUSTC_BOOTSTRAP=1 "$program" \
            -Zunstable-options --report-time --test-threads="$jobs" "$@") || failed=1
    done
    return "$failed"
}

# Starts the lints, in a process group of their own. They take what the system tests leave of the
# processors: these wait for packets most of the time.
begin_lints() {
    set -m
    (renice -n 19 "$BASHPID" >/dev/null && clippy && echo clean) >"$scratch/lints" 2>&1 &
    lints=$!
    set +m
}

# Waits for what is left of the lints, and prints what they found.
end_lints() {
    step "cargo clippy, what the system tests left"
    wait "$lints" || true
    lints=
    [ "$(tail -n 1 "$scratch/lints")" = clean ] || {
        cat "$scratch/lints" >&2
        problems+=("cargo clippy")
    }
}

# A test that skipped itself says "ok" all the same.
sum() {
    awk -v skips="$(grep -c . "$TAM_SKIPS" || true)" '
        /^test result: / { passed += $4; failed += $6; ignored += $8 }
        END { printf "%d %d %d\n", passed - skips, failed, ignored + skips }' "$output"
}

# The seconds of each step, and the slowest tests.
times() {
    step ""
    echo "seconds of each step ($SECONDS in all):"
    awk '{ printf "%6d ", $1; $1 = ""; print }' "$seconds"
    echo "slowest tests, in seconds:"
    sed -n 's/^test \(.*\) \.\.\. .*<\([0-9.]*\)s>$/\2 \1/p' "$output" |
        awk '$1 >= 2' | sort -rn | awk -v most="$SLOWEST" 'NR <= most { printf "%6.1f  %s\n", $1, $2 }'
}

report() {
    local passed failed skipped
    times
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
        tests workspace cargo xtask test "${root[@]}"
        tests "examples of documents" cargo test --release --workspace --doc --quiet --no-fail-fast
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
    step "system tests' programs"
    programs=$(system_programs)
    [ -n "$programs" ] || problems+=("system tests' programs")
    [ -n "${1-}" ] || begin_lints
    tests system system "$SYSTEM_JOBS" --skip alone::
    [ -n "${1-}" ] || end_lints
    # Those that look at the whole machine, or end what others made.
    tests "system, one at a time" system 1 alone::
    report
}

main "$@"
