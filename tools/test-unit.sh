#!/usr/bin/env bash
# Tests the unit of the Debian package under a real systemd: a Debian 12 with the kernel of its
# backports boots in qemu, where the package is installed and a node enabled. It checks the order
# at boot, start, a crash, the watchdog, an upgrade, a mistake in a node file, stop and purge.
# Needs root, mmdebstrap, qemu-system-x86, e2fsprogs and a mirror of Debian. The guest is emulated,
# so a run takes some minutes.
#
#   tools/test-unit.sh [PACKAGE.deb]        target/debian/tamandua_*.deb when it is left out
#   ROOT_TAR=FILE tools/test-unit.sh        unpacks this instead of calling mmdebstrap
#   ACCEL=kvm tools/test-unit.sh            does not emulate, where the machine can
set -euo pipefail

fail() { echo "test-unit: $*" >&2; exit 1; }

SECONDS_MAX=900
INCLUDED=systemd-sysv,udev,kmod,iproute2,iputils-ping,procps,init-system-helpers,libelf1,zlib1g

make_root() {
    if [ -n "${ROOT_TAR-}" ]; then
        tar -C "$1" -xf "$ROOT_TAR"
    else
        # The mirror that this machine uses.
        mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sed -n 1p)
        mmdebstrap --quiet --variant=minbase --include=$INCLUDED,linux-image-cloud-amd64/bookworm-backports \
            bookworm "$1" "deb $mirror bookworm main" "deb $mirror bookworm-backports main"
    fi
}

outside() {
    [ "$(id -u)" = 0 ] || fail "needs root"
    cd "$(dirname "$0")/.."
    package=${1:-$(ls -t target/debian/tamandua_*.deb 2>/dev/null | sed -n 1p)}
    [ -f "$package" ] || fail "there is no package; 'make deb' builds it"
    for tool in mmdebstrap qemu-system-x86_64 mke2fs; do
        command -v "$tool" >/dev/null || fail "there is no $tool"
    done
    folder=$(mktemp -d /tmp/tamandua-unit.XXXXXX)
    trap 'rm -rf --one-file-system "$folder"' EXIT
    root=$folder/root
    mkdir "$root"
    make_root "$root"
    install -m 644 "$package" "$root/opt/tamandua.deb"
    install -m 755 tools/test-unit.sh tools/two-hosts.sh "$root/opt"
    chroot "$root" dpkg -i /opt/tamandua.deb >/dev/null
    node_file edge eth0 eth1 >"$root/etc/tamandua/edge.toml"
    printf '%s\n' '[[service]]' 'module = "/usr/share/tamandua/services/touch/touch.wasm"' \
        'on_failure = "closed"' 'rules = ["proto icmp"]' >>"$root/etc/tamandua/edge.toml"
    for n in 0 1; do
        printf '[Match]\nName=eth%s\n[Network]\nAddress=192.0.2.%s/30\n' $n $((4 * n + 1)) \
            >"$root/etc/systemd/network/eth$n.network"
    done
    printf '[Unit]\nAfter=multi-user.target\n[Service]\nType=idle\nExecStart=/opt/test-unit.sh --inside\nStandardOutput=tty\nStandardError=tty\nTTYPath=/dev/ttyS0\n[Install]\nWantedBy=multi-user.target\n' \
        >"$root/etc/systemd/system/test-unit.service"
    chroot "$root" systemctl --quiet enable tamandua@edge systemd-networkd test-unit 2>/dev/null
    chroot "$root" systemctl --quiet mask serial-getty@ttyS0 systemd-networkd-wait-online
    truncate -s 4G "$folder/disk"
    mke2fs -q -t ext4 -d "$root" "$folder/disk"
    kernel=$(ls "$root"/boot/vmlinuz-* | sort -V | tail -1)
    # cx16: emulated with several processors, qemu 7.2 gets this instruction wrong.
    timeout $SECONDS_MAX qemu-system-x86_64 -accel "${ACCEL:-tcg,thread=multi}" -cpu max,cx16=off \
        -smp 2 -m 3072 -nographic -no-reboot -kernel "$kernel" -initrd "${kernel/vmlinuz/initrd.img}" \
        -append "root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet panic=-1 systemd.show_status=no" \
        -drive "file=$folder/disk,if=virtio,format=raw,cache=unsafe" \
        -nic user,restrict=on,model=virtio-net-pci -nic user,restrict=on,model=virtio-net-pci \
        </dev/null 2>&1 | sed -u 's,\r,,g; s/^.*unit: /unit: /' | tee "$folder/log" | grep --line-buffered '^unit: ' || true
    grep -q '^unit: all is well' "$folder/log" && return
    tail -40 "$folder/log" >&2
    fail "the guest did not pass"
}

node_file() { # NAME DEVICE DEVICE
    printf '%s\n' "name = \"$1\"" '[[port]]' 'name = "left"' "device = \"$2\"" \
        '[[port]]' 'name = "right"' "device = \"$3\"" '[trust]' 'unsigned = "accept"'
}

# ---- in the guest ---------------------------------------------------------------------------

say() { printf 'unit: %-12s %s\n' "$1" "$2"; }
of() { systemctl show --property="$2" --value "tamandua@$1"; }
wait_until() { # SECONDS COMMAND…
    local n=$1
    shift
    for _ in $(seq "$n"); do "$@" >/dev/null 2>&1 && return; sleep 1; done
    fail "after $n s not so: $*"
}
restarted() { [ "$(of "$1" NRestarts)" -gt "$2" ] && [ "$(of "$1" SubState)" = running ]; }
runs() { tam list --node flow --json | grep '"state":"running"' >/dev/null; }
ping_through() { ip netns exec h1 ping -q -c "$1" -i 0.2 -W 5 10.0.2.2; }
adopted() { [ "$(journalctl -u tamandua@flow -o cat | grep -c 'adopted what a daemon before left')" -ge "$1" ]; }

network() {
    . /opt/two-hosts.sh
    two_hosts veth
}

inside() {
    export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive NO_COLOR=1
    trap 'code=$?; [ $code = 0 ] || journalctl -u "tamandua@*" --no-pager -o cat | tail -30; systemctl --no-block poweroff' EXIT

    ready=$(of edge ActiveEnterTimestampMonotonic)
    managers=$(systemctl show --property=InactiveExitTimestampMonotonic --value systemd-networkd)
    [ "${ready:-0}" -gt 0 ] || fail "the node was not started at boot"
    [ "$ready" -lt "$managers" ] || fail "ready at $ready µs, the network began at $managers µs"
    ! journalctl -b | grep -i "ordering cycle" >/dev/null || fail "the units' order has a cycle"
    say boot "Linux $(uname -r): ready $(((managers - ready) / 1000)) ms before systemd-networkd started"

    network
    node_file flow veth1 veth2 >/etc/tamandua/flow.toml
    systemctl enable --now tamandua@flow 2>/dev/null
    [ "$(of flow ActiveState)" = active ] || fail "the node is not active"
    tam deploy /usr/share/tamandua/services/touch/touch.wasm --node flow --rule "proto icmp" >/dev/null
    ping_through 5 >/dev/null
    say start "$(of flow StatusText)"
    # A module that is small: the emulated compiler has 5 s of processor time as well.
    tam deploy /usr/share/tamandua/services/echo/echo.wasm --node flow --rule "proto udp dport 7" >/dev/null
    for level in user kernel nic; do
        tam move echo --to $level --node flow >/dev/null
        tam show echo --node flow | grep "^level  *$level" >/dev/null || fail "$(tam show echo --node flow)"
    done
    tam stats --node flow >/dev/null
    say levels "a service moves to user, kernel and nic"

    kill -KILL "$(of flow MainPID)"
    wait_until 60 restarted flow 0
    wait_until 30 runs
    adopted 1 || fail "the next daemon has not adopted"
    say crash "systemd started the next daemon, which adopted"

    mkdir /run/systemd/system/tamandua@flow.service.d
    printf '[Service]\nWatchdogSec=5s\n' >/run/systemd/system/tamandua@flow.service.d/watchdog.conf
    systemctl daemon-reload
    kill -KILL "$(of flow MainPID)"
    wait_until 60 restarted flow 1
    sleep 15
    [ "$(of flow NRestarts)" = 2 ] || fail "the watchdog ended a daemon that was well"
    kill -STOP "$(of flow MainPID)"
    wait_until 90 restarted flow 2
    journalctl -u tamandua@flow | grep "Watchdog timeout" >/dev/null || fail "that was not the watchdog"
    wait_until 30 runs
    say watchdog "a daemon that hung was ended, the next one adopted"

    restarts=$(of flow NRestarts)
    ping_through 150 >/tmp/ping &
    pinging=$!
    dpkg -i /opt/tamandua.deb >/dev/null
    wait_until 60 restarted flow "$restarts"
    wait_until 30 runs
    wait $pinging || fail "$(cat /tmp/ping)"
    say upgrade "over itself: $(grep received /tmp/ping)"

    printf 'name = "bad"\nfast_pth = "auto"\n' >/etc/tamandua/bad.toml
    ! systemctl start tamandua@bad 2>/dev/null || fail "a node file with a mistake was started"
    [ "$(of bad ActiveState)" = failed ] || fail "the unit of a wrong file is $(of bad ActiveState)"
    say mistake "$(of bad StatusText)"

    dpkg -r tamandua >/dev/null
    ! pgrep -x tam >/dev/null || fail "processes are left"
    [ -z "$(ls /run/tamandua /sys/fs/bpf/tamandua | grep -v :)" ] || fail "nodes are left"
    [ -e /var/lib/tamandua/flow/node.key.pem ] || fail "the state is gone"
    say remove "nodes stopped, state is there"
    rm -r /etc/tamandua/{edge,flow,bad}.toml /run/systemd/system/tamandua@flow.service.d
    dpkg -P tamandua >/dev/null
    left=$(find / -xdev -name '*tamandua*' -not -path '/opt/*' -not -path '/proc/*' -not -path '/var/lib/systemd/*'
        find /run /sys/fs/bpf -name '*tamandua*'
        systemctl list-units --all --plain --no-legend 'tamandua@*')
    [ -z "$left" ] || fail "left: $left"
    say purge "0 paths, processes and units left"
    say "all is well" ""
}

if [ "${1-}" = --inside ]; then inside; else outside "$@"; fi
