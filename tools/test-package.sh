#!/usr/bin/env bash
# Tests the Debian package in a fresh Debian 12 below a temporary folder: install, a node with a
# service on real traffic, upgrade over itself, remove, purge; then it counts what is left. Needs
# root, mmdebstrap, and a mirror of Debian. Everything happens in mount, network and process
# namespaces that end with it; there is no systemd in them, as in a container.
#
#   tools/test-package.sh [PACKAGE.deb]      target/debian/tamandua_*.deb when it is left out
#   ROOT_TAR=FILE tools/test-package.sh      unpacks this instead of calling mmdebstrap
set -euo pipefail

fail() { echo "test-package: $*" >&2; exit 1; }

# Makes the fresh Debian below $1.
make_root() {
    if [ -n "${ROOT_TAR-}" ]; then
        tar -C "$1" -xf "$ROOT_TAR"
    else
        command -v mmdebstrap >/dev/null || fail "there is no mmdebstrap (apt install mmdebstrap)"
        mmdebstrap --quiet --variant=minbase --include=libelf1,zlib1g,iproute2,iputils-ping,init-system-helpers \
            bookworm "$1" || fail "mmdebstrap made no Debian"
    fi
}

# The first half, outside: makes the root, enters the namespaces, removes the root.
outside() {
    [ "$(id -u)" = 0 ] || fail "needs root"
    cd "$(dirname "$0")/.."
    package=${1:-$(ls -t target/debian/tamandua_*.deb 2>/dev/null | sed -n 1p)}
    [ -f "$package" ] || fail "there is no package; 'make deb' builds it"
    root=$(mktemp -d /tmp/tamandua-package.XXXXXX)
    trap 'rm -rf --one-file-system "$root"' EXIT
    chmod 755 "$root"
    make_root "$root"
    install -m 644 "$package" "$root/tmp/tamandua.deb"
    install -m 755 tools/test-package.sh tools/two-hosts.sh "$root/tmp"
    unshare --mount --net --pid --fork --kill-child --propagation private bash -euc '
        mount --bind "$1" "$1"
        mount -t proc proc "$1/proc"
        mount -t sysfs sysfs "$1/sys"
        mount -t bpf bpf "$1/sys/fs/bpf"
        mount --rbind /dev "$1/dev"
        mount -t tmpfs -o mode=755 tmpfs "$1/run"
        exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive /tmp/test-package.sh --inside
    ' - "$root"
    echo "package     $(($(stat -c %s "$package") / 1024)) KiB, $package"
}

step() { printf '%-11s ' "$1"; }
check() { "$@" >/dev/null || fail "failed: $*"; }

# Paths of the package and its nodes, and all paths that did not exist before.
paths() { find / -xdev \( -path /proc -o -path /tmp -o -path /var/lib/dpkg -o -path /var/cache -o -path /var/log \) -prune -o -print | sort; }
left() { paths | comm -13 /tmp/before -; find /run /sys/fs/bpf -mindepth 1 -name '*tamandua*'; }

# Receives what the node tells a service manager, one line a message, below /tmp.
manager() {
    perl -MIO::Socket::UNIX -e '
        my $s = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Local => "/tmp/notify") or die;
        $| = 1; while (defined $s->recv(my $m, 4096)) { print $m }' >/tmp/told &
    until [ -S /tmp/notify ]; do sleep 0.1; done
}

start_node() { # ARGUMENTS…: waits until it is ready
    : >/tmp/told
    NOTIFY_SOCKET=/tmp/notify tam node --config /etc/tamandua/edge.toml "$@" 2>>/tmp/node.log &
    node=$!
    for _ in $(seq 600); do
        ! grep -q READY=1 /tmp/told || return 0
        kill -0 $node 2>/dev/null || { cat /tmp/node.log >&2; fail "the node ended"; }
        sleep 0.1
    done
    fail "the node was not ready in 60 s"
}

network() {
    ip link set lo up
    . /tmp/two-hosts.sh
    two_hosts eth
}

ping_through() { check ip netns exec h1 ping -q -c 5 -i 0.2 -W 2 10.0.2.2; }

handled() { tam list --json | grep -o '"packets":[0-9]*' | sed -n 1p | cut -d: -f2; }

# The second half, inside.
inside() {
    network
    manager
    paths >/tmp/before

    step install
    check dpkg -i /tmp/tamandua.deb
    [ ! -e /run/tamandua ] || fail "the package has started something"
    for file in /usr/bin/tam /usr/lib/systemd/system/tamandua@.service /usr/share/man/man1/tam.1.gz \
        /usr/share/bash-completion/completions/tam /etc/tamandua/example.toml; do
        [ -s "$file" ] || fail "$file is missing"
    done
    echo "$(dpkg -L tamandua | while read -r path; do [ -d "$path" ] || echo; done | wc -l) files, nothing is started"

    step run
    printf '%s\n' 'name = "edge"' '[[port]]' 'name = "left"' 'device = "eth1"' '[[port]]' \
        'name = "right"' 'device = "eth2"' '[trust]' 'unsigned = "accept"' >/etc/tamandua/edge.toml
    start_node
    check tam deploy /usr/share/tamandua/services/touch/touch.wasm --rule "proto icmp"
    ping_through
    before=$(handled)
    [ "${before:-0}" -ge 5 ] || fail "the service handled ${before:-0} packets"
    echo "ready, the service handled $before packets of ping"

    step samples
    folder=/usr/share/tamandua/services/firewall
    check tam run $folder/firewall.wasm $folder/captures/flows.pcap --expect $folder/captures/flows.toml
    echo "a sample over its capture, as expected"

    step upgrade
    check dpkg -i /tmp/tamandua.deb
    before_node=$node
    start_node --takeover
    wait $before_node || fail "the daemon before ended with $?"
    grep -q "adopted what a daemon before left" /tmp/node.log || fail "nothing was adopted"
    ping_through
    echo "over itself; the service went on and has handled $(handled) packets"

    step remove
    kill -KILL $node
    wait $node 2>/dev/null || true
    check dpkg -r tamandua
    [ ! -e /sys/fs/bpf/tamandua/edge ] || fail "pins of a dead node are left"
    [ ! -e /run/tamandua/edge ] || fail "the run directory of a dead node is left"
    [ -e /var/lib/tamandua/edge/node.key.pem ] || fail "the node's state is gone"
    [ -e /etc/tamandua/example.toml ] || fail "the example is gone"
    ping_through
    echo "a dead node's remains are gone, its state and the example are there"

    step again
    check dpkg -i /tmp/tamandua.deb
    start_node
    [ "$(tam list --json | grep -c '"touch"')" -ge 1 ] || fail "the node has lost its service"
    kill -TERM $node
    wait $node || fail "the node ended with $?"
    grep -q STOPPING=1 /tmp/told || fail "the service manager was not told of the end"
    echo "the node runs what it ran, and stops"

    step purge
    rm /etc/tamandua/edge.toml
    check dpkg -P tamandua
    left >/tmp/left
    echo "$(wc -l </tmp/left) paths left"
    if [ -s /tmp/left ]; then
        cat /tmp/left >&2
        fail "the purge has left something"
    fi
}

if [ "${1-}" = --inside ]; then inside; else outside "$@"; fi
