#!/usr/bin/env bash
# Tests with other people's programs at the other end: one function for each peer, which
# installs what it needs, prints what it does, and fails when the two do not agree. Its commands
# are joined by && (bash ends a function at the first failure only where nobody asks how it ended).
#
#   tools/test-peers.sh              every peer
#   tools/test-peers.sh association  some of them, by name
#
# What is fetched stays in target/peers. The last line says which peers agreed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/rust.sh
rust_find || {
    echo "test-peers: no Rust 1.$(rust_minimum) or newer; run tools/setup.sh" >&2
    exit 1
}

PEERS="programs forwarders association repository filters"
KEPT=target/peers

say() { echo "test-peers: $*" >&2; }

# Packages of Python in an environment of their own: its name, then what pip installs.
python_with() {
    local environment=$KEPT/$1
    shift
    mkdir -p "$KEPT"
    if ! [ -x "$environment/bin/pip" ]; then
        python3 -m venv "$environment" >/dev/null 2>&1 || {
            say "installing python3-venv"
            local root=()
            [ "$(id -u)" = 0 ] || root=(sudo -n)
            "${root[@]}" apt-get -qq -y install python3-venv >/dev/null &&
                python3 -m venv --clear "$environment" || return
        }
    fi
    say "pip install $*"
    "$environment/bin/pip" install --quiet --disable-pip-version-check "$@"
}

# ping, curl, iperf3, nft, BIRD, nginx, Icecast and what else the system tests have at the other end.
peer_programs() {
    tools/test.sh --peers
}

# Plain Linux: 3,000 packets through it and through a node, as `make test` does with a tenth of them.
peer_forwarders() {
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo -n)
    cargo --config "target.'cfg(unix)'.runner='${root[*]} env TAM_SOAK=1'" test --release --workspace \
        --test system -- --exact --nocapture forwarders::a_node_sends_what_plain_linux_sends >&2
}

# docs/guides/associations.md in Python, on noiseprotocol and OpenSSL: the handshake in both roles,
# once with a cookie, then packets of many sizes over several keys.
peer_association() {
    python_with association noiseprotocol==0.3.1 "cryptography>=42,<60" &&
        cargo build --release --quiet --package peers &&
        target/release/peers association "$KEPT/association/bin/python3" lab/peers/association.py
}

# docker-registry, skopeo, oras and cosign.
peer_repository() {
    tools/peers-repository.sh
}

# A filter for streams with the public Go SDK, in our host and at a node, for curl. Debian's Go is
# too old for it.
peer_filters() {
    # sudo has a PATH of its own, and Go is seldom on it.
    local root=(env "PATH=$PATH")
    [ "$(id -u)" = 0 ] || root=(sudo -n --preserve-env "${root[@]}")
    go version >&2 &&
        cargo test --release --package proxy-wasm --features peers --lib go:: &&
        cargo build --release --quiet --workspace &&
        cargo --config "target.'cfg(unix)'.runner='${root[*]}'" test --release --workspace \
            --features system/peers --test system -- --test-threads=1 go_filter::
}

agreed=()
for name in ${*:-$PEERS}; do
    case " $PEERS " in *" $name "*) ;; *)
        say "there is no peer $name; there are: $PEERS"
        exit 2
        ;;
    esac
    say "== $name"
    "peer_$name" || {
        say "$name does not agree"
        exit 1
    }
    agreed+=("$name")
done
echo "agreed: ${agreed[*]}"
