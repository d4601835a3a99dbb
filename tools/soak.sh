#!/usr/bin/env bash
# Runs what needs hours, and stops at the first failure:
#
#   1. 1,000 modules that are made to blow up the compiler, and 100 kills of daemon and cell
#      at random moments
#   2. the differential test with 100,000 random modules, and the twelve functions
#      with 10,000,000 random packets at every level: the seeds of `make test`
#   3. every fuzz target for FUZZ_SECONDS (600), and the front door over 1,000,000 mutated
#      frames, read as in Rust; 1,000,000 active packets recorded and replayed
#   4. a million repositories that lie, a million tokens that somebody has changed
#   5. 1,000 kills while a ledger is written; the bill of exactly 1,000,000 packets; a flood
#      from 1,000,000 crafted prefixes
#   6. 100,000 sets of promises in each property of core/session, and as many random histories of
#      the daemon's placement of services
#   7. 6,000 clients who come and leave a node's services of streams within a minute
#   8. `tam demo` again and again for SOAK_MINUTES, with a check after each run that
#      no namespace and no pin is left behind
#
# The last line says how much of both there was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/rust.sh
rust_find
PATH="$PATH:/usr/sbin:/sbin"
minutes=${SOAK_MINUTES:-30}
root=()
[ "$(id -u)" = 0 ] || root=(sudo)

# Random cases of property tests: another seed in each run, printed to repeat it.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')}
echo "soak: PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED" >&2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Runs a test in its long form, by its program (lib for those beside the code) and its name; one
# that was skipped has failed. It is built as who calls this, and runs as root. With --workspace,
# so that dependencies keep the features, and so the builds, of other tests.
long() {
    local name=$1 test=$2
    local of=(--test "$name")
    [ "$name" != lib ] || of=(--lib)
    local skips=$scratch/skips
    : >"$skips"
    echo "soak: $test" >&2
    cargo --config "target.'cfg(unix)'.runner='${root[*]} env TAM_SOAK=1 TAM_SKIPS=$skips'" \
        test --release --workspace "${of[@]}" -- --exact --nocapture "$test" 2>&1 |
        tee "$scratch/said" >&2
    grep -q '^test result: ok. 1 passed' "$scratch/said" || {
        echo "soak: there is no test $test" >&2
        exit 1
    }
    if [ -s "$skips" ]; then
        echo "soak: skipped: $(cat "$skips")" >&2
        exit 1
    fi
}

traces() {
    ip netns list | awk '/^tam-/ { print $1 }'
    ls -d /sys/fs/bpf/tamandua/* 2>/dev/null || true
}

for name in compress reflector; do target/release/tam build "services/$name"; done

long system bombs::modules_made_to_blow_up_the_compiler_end_within_its_limits_while_the_node_answers
long system kills::alone::kills_at_random_moments_lose_nothing_but_what_was_in_a_dead_cells_rings
long differential random_modules_agree_in_kernel_wasmtime_and_wasmi
long levels_random random_packets_get_the_same_results_everywhere
long levels_kernel random_packets_get_the_same_results_at_kernel_nic_and_user_level
long repository lying::no_lie_of_ten_thousand_registries_is_accepted
long tokens of_ten_thousand_changed_tokens_none_is_accepted
long lib ledger::files::tests::nothing_is_lost_or_doubled_when_the_writer_is_killed_at_any_point
long lib control::placement::simulation::in_any_history_services_reach_the_level_that_is_reported
long lib control::simulation::in_any_history_each_desired_object_exists_or_is_reported_missing
long system guard::crafted_sources_get_no_legitimate_prefix_held
long system ledger::the_bill_of_a_number_of_packets_is_what_sender_and_receiver_count
long front_door parser::mutated_frames_are_read_as_in_rust
long replay recorded_packets_are_accepted_once_also_after_restarts_and_by_no_successor
long system crowds::clients_who_come_and_leave_at_any_moment_leave_nothing_and_disturb_nobody
TAM_SOAK=1 cargo test --release --workspace --test session >&2
tools/fuzz.sh "${FUZZ_SECONDS:-600}" >&2

runs=0
end=$((SECONDS + minutes * 60))
before=$(traces)
while [ "$SECONDS" -lt "$end" ]; do
    "${root[@]}" target/release/tam demo --json >/dev/null || {
        echo "soak: run $((runs + 1)) failed after $((SECONDS / 60)) minutes" >&2
        exit 1
    }
    runs=$((runs + 1))
    if [ "$(traces)" != "$before" ]; then
        echo "soak: run $runs left this behind: $(traces | tr '\n' ' ')" >&2
        exit 1
    fi
    echo "soak: $runs runs, $(((end - SECONDS) / 60)) minutes left" >&2
done
echo "100 kills, 1,000 of a ledger's writer; a million lies, forged tokens and replayed packets refused; 100,000 modules, 100,000 sets of promises and twice 10,000,000 packets agreed; 6,000 clients left nothing; $runs runs in $minutes minutes, none failed"
