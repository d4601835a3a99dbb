#!/usr/bin/env bash
# Runs `tam demo` again and again for SOAK_MINUTES and stops at the first run
# that fails or leaves a namespace or a pin behind. The last line says how many
# runs there were.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PATH:/usr/sbin:/sbin"
minutes=${SOAK_MINUTES:-30}
end=$((SECONDS + minutes * 60))
runs=0
root=()
[ "$(id -u)" = 0 ] || root=(sudo)

traces() {
    ip netns list | awk '/^tam-/ { print $1 }'
    ls -d /sys/fs/bpf/tamandua/* 2>/dev/null || true
}

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
echo "$runs runs in $minutes minutes, none failed"
