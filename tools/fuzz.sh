#!/usr/bin/env bash
# Runs the fuzz targets of lab/fuzz one after the other and says what each reached.
#
#   tools/fuzz.sh [SECONDS [TARGET...]]     60 seconds of every target
#
# It needs a nightly Rust and cargo-fuzz. Where they are missing it names them, and runs the
# same targets with mutations that no coverage guides (lab/targets) for as long.
# Inputs that were worth keeping stay in lab/fuzz/corpus, so that the next run
# goes on from there. Ends with 1 when a target found something; the input and
# the log are named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

INPUT_SECONDS_MAX=5    # an input that takes longer is a finding
MEMORY_MIB_MAX=2048    # so is one that takes more
LENGTH_MAX=8192        # bytes of one input; modules are longer
MODULE_LENGTH_MAX=65536

seconds=${1:-60}
[ $# -eq 0 ] || shift
targets=("$@")

say() { echo "fuzz: $*" >&2; }

# The same without a nightly compiler.
unguided() {
    say "$1; until then without its guidance"
    . tools/rust.sh
    rust_find
    TAM_FUZZ_SECONDS=$seconds cargo test --release --workspace --test mutations -- \
        --nocapture --test-threads=1 "${targets[@]}"
    exit
}

cargo +nightly --version >/dev/null 2>&1 ||
    unguided "no nightly Rust; rustup toolchain install nightly --profile minimal"
cargo fuzz --version >/dev/null 2>&1 || unguided "no cargo-fuzz; cargo install cargo-fuzz --locked"
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cargo +nightly fuzz list --fuzz-dir lab/fuzz)

# Copies what the tree has of good inputs into a target's corpus.
seed() {
    local target=$1 corpus=$2 file
    mkdir -p "$corpus"
    [ ! -d "lab/fuzz/seeds/$target" ] || cp "lab/fuzz/seeds/$target"/* "$corpus"
    case $target in
    parse_frame)
        for file in vectors/wire/*.hex; do
            # The lines behind the first empty one are bytes in hexadecimal digits.
            # shellcheck disable=SC2059 # the format is the data: \xNN for each byte
            printf "$(sed '1,/^$/d' "$file" | tr -d ' \n' | sed 's/../\\x&/g')" \
                >"$corpus/$(basename "$file" .hex)"
        done
        ;;
    check_module)
        for file in services/*/*.wasm; do [ ! -e "$file" ] || cp "$file" "$corpus"; done
        ;;
    read_capture)
        for file in services/*/captures/*.pcap; do cp "$file" "$corpus/$(basename "$(dirname "$(dirname "$file")")")-$(basename "$file")"; done
        ;;
    parse_manifest)
        for file in services/*/module.toml; do cp "$file" "$corpus/$(basename "$(dirname "$file")")"; done
        ;;
    esac
}

# One target; its last line is what it reached.
fuzz() {
    local target=$1 log=lab/fuzz/corpus/$1.log length=$LENGTH_MAX executions covered
    [ "$target" != check_module ] || length=$MODULE_LENGTH_MAX
    seed "$target" "lab/fuzz/corpus/$target"
    say "$target, $seconds s"
    if cargo +nightly fuzz run "$target" --fuzz-dir lab/fuzz -- -max_total_time="$seconds" \
        -max_len="$length" -timeout="$INPUT_SECONDS_MAX" -rss_limit_mb="$MEMORY_MIB_MAX" \
        -print_final_stats=1 >"$log" 2>&1; then
        executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        covered=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
        echo "$target: $executions executions, $covered edges, nothing found"
    else
        echo "$target: FOUND something, or did not run; see $log and lab/fuzz/artifacts/$target"
        return 1
    fi
}

failed=0
for target in "${targets[@]}"; do
    fuzz "$target" || failed=1
done
exit "$failed"
