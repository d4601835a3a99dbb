#!/usr/bin/env bash
# Other people's programs at the other end, one function for each:
#
#   registry   Debian's docker-registry, with and without a password
#   skopeo     Debian's; copies between registry and directory, both ways
#   oras       from the Go module proxy; older layouts, archives
#   cosign     from the Go module proxy; its signatures here, ours there
#
#   tools/peers-repository.sh [PEER...]
#
# Programs that are missing are installed: those of Debian with apt-get, those in Go into
# target/peers (20 minutes of a core the first time). All of it talks on 127.0.0.1 only. Ends
# with 1 when a peer disagrees; a peer that cannot be had is a failure, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/rust.sh
PATH="$PWD/target/peers/bin:$PATH:/usr/local/go/bin:/usr/sbin:/sbin"

ORAS=oras.land/oras/cmd/oras@v1.3.6
COSIGN=github.com/sigstore/cosign/v2/cmd/cosign@v2.6.5
TAM=$PWD/target/release/tam
MODULE=$PWD/vectors/v1/abi/monitor.wasm
STARTED_SECONDS_MAX=20
COSIGN_NO_MATCH=12 # how cosign ends without a matching signature

scratch=$(mktemp -d)
pids=()
passed=0
failed=0

finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap finish EXIT

# One fact: a name, then a command that must succeed.
holds() {
    local name=$1
    shift
    if "$@" >"$scratch/out" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: $name: $*" >&2
        tail -n 5 "$scratch/out" | sed 's/^/    /' >&2
    fi
}

# The same for a command that must end with this status.
ends() {
    local name=$1 status=$2 found=0
    shift 2
    "$@" >"$scratch/out" 2>&1 || found=$?
    if [ "$found" = "$status" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: $name: status $found, not $status: $*" >&2
        tail -n 5 "$scratch/out" | sed 's/^/    /' >&2
    fi
}

same() { cmp "$1" "$2"; }
tam() { "$TAM" "$@"; }

need_debian() {
    command -v "$1" >/dev/null && return
    echo "peers: installing $1" >&2
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo -n)
    "${root[@]}" apt-get -qq -y install --no-install-recommends "$1" >/dev/null
}

need_go() {
    command -v "$1" >/dev/null && return
    command -v go >/dev/null || { echo "peers: $1 needs Go 1.25 or newer" >&2; exit 1; }
    echo "peers: building $2, some minutes" >&2
    GOBIN=$PWD/target/peers/bin go install "$2"
}

# The programs of a peer.
need() {
    need_debian docker-registry
    case $1 in
    skopeo) need_debian skopeo ;;
    oras) need_go oras "$ORAS" ;;
    cosign) need_go cosign "$COSIGN" ;;
    esac
}

# A registry on a free port of 127.0.0.1; its address is in $address. Arguments are lines of its
# configuration.
start_registry() {
    local port folder
    folder=$(mktemp -d "$scratch/registry.XXXX")
    for port in $(shuf -i 20000-29999 -n 20); do
        cat >"$folder/config.yml" <<CONFIG
version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: $folder/data}}
http: {addr: 127.0.0.1:$port}
CONFIG
        printf '%s\n' "$@" >>"$folder/config.yml"
        docker-registry serve "$folder/config.yml" >"$folder/log" 2>&1 &
        local pid=$! end=$((SECONDS + STARTED_SECONDS_MAX))
        while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$end" ]; do
            if curl -s -o /dev/null "http://127.0.0.1:$port/v2/"; then
                pids+=("$pid")
                address=127.0.0.1:$port
                return
            fi
            sleep 0.1
        done
        kill "$pid" 2>/dev/null || true
    done
    echo "peers: docker-registry does not start: $(tail -n 3 "$folder/log")" >&2
    exit 1
}

# Keys, passwords and stores of nobody else, and the module, signed by alice.
prepare() {
    export HOME=$scratch/home XDG_CONFIG_HOME=$scratch/config XDG_DATA_HOME=$scratch/data
    export DOCKER_CONFIG=$scratch/docker COSIGN_PASSWORD="" COSIGN_YES=true
    mkdir -p "$HOME" "$DOCKER_CONFIG"
    echo '{}' >"$DOCKER_CONFIG/config.json"
    # cosign would ask the network for keys of a service that is not used here.
    export HTTPS_PROXY=http://127.0.0.1:1 NO_PROXY=127.0.0.1
    cp "$MODULE" "$scratch/monitor.wasm"
    tam key new alice --plain >/dev/null
    tam key new bob --plain >/dev/null
    tam sign "$scratch/monitor.wasm" --key alice >/dev/null
}

peer_registry() {
    start_registry
    local at=$address/team/monitor
    holds "a module is pushed" tam push "$scratch/monitor.wasm" "$at:one"
    holds "again changes nothing" tam push "$scratch/monitor.wasm" "$at:one"
    holds "it comes back" tam pull "$at:one" -o "$scratch/back.wasm" --key alice
    holds "with the same bytes" same "$scratch/monitor.wasm" "$scratch/back.wasm"
    holds "and its signatures" same "$scratch/monitor.wasm.sig" "$scratch/back.wasm.sig"
    ends "bob has not signed it" 4 tam pull "$at:one" --key bob
    holds "bob signs it there" tam sign "$at:one" --key bob
    holds "now he has" tam verify "$at:one" --key bob
    holds "and alice still" tam verify "$at:one" --key alice
    ends "what is not there is not found" 3 tam pull "$at:two"
    holds "a mirror has it when the first is down" tam pull "127.0.0.1:1/team/monitor:one" --mirror "$address" -o "$scratch/mirror.wasm" --time 30

    # alice:secret, as htpasswd -B makes it.
    printf 'alice:%s\n' '$2y$05$NfKOmGn83OjUU2yUwWN9DuCQMTcYPt9YSniAkC0eKUnHqPJ8Cudze' >"$scratch/htpasswd"
    start_registry "auth: {htpasswd: {realm: peers, path: $scratch/htpasswd}}"
    local closed=$address/monitor
    ends "without a password nothing is pushed" 4 tam push "$scratch/monitor.wasm" "$closed"
    printf '{"auths":{"%s":{"auth":"%s"}}}' "$address" "$(printf 'alice:wrong' | base64)" >"$scratch/wrong.json"
    ends "nor with a wrong one" 4 tam push "$scratch/monitor.wasm" "$closed" --auth-file "$scratch/wrong.json"
    printf '{"auths":{"%s":{"auth":"%s"}}}' "$address" "$(printf 'alice:secret' | base64)" >"$scratch/right.json"
    holds "with the right one it is" tam push "$scratch/monitor.wasm" "$closed:1" --auth-file "$scratch/right.json"
    holds "and pulled" tam pull "$closed:1" --auth-file "$scratch/right.json" --key alice -o "$scratch/closed.wasm"
}

peer_skopeo() {
    start_registry
    local at=$address/monitor digest tag
    tam push "$scratch/monitor.wasm" "$at:one" >/dev/null
    digest=$(tam --json verify "$at:one" --key alice | sed 's/.*"image":"\([^"]*\)".*/\1/')
    tag=$(echo "$digest" | sed 's/:/-/').sig
    holds "skopeo sees our image" skopeo inspect --raw --tls-verify=false "docker://$at:one"
    sha256sum "$scratch/out" >"$scratch/sum"
    holds "of the digest that we say" grep -q "${digest#sha256:}" "$scratch/sum"
    holds "skopeo copies it into a directory" skopeo copy --src-tls-verify=false "docker://$at:one" "oci:$scratch/layout:one"
    holds "and the signatures" skopeo copy --src-tls-verify=false "docker://$at:$tag" "oci:$scratch/layout:$tag"
    holds "which we read" tam pull "oci:$scratch/layout:one" --key alice -o "$scratch/skopeo.wasm"
    holds "with the same bytes" same "$scratch/monitor.wasm" "$scratch/skopeo.wasm"
    holds "we write a directory" tam push "$scratch/monitor.wasm" "oci:$scratch/ours:two"
    holds "which skopeo copies into a registry" skopeo copy --dest-tls-verify=false "oci:$scratch/ours:two" "docker://$at:two"
    holds "with its signatures" skopeo copy --dest-tls-verify=false "oci:$scratch/ours:$tag" "docker://$address/other:$tag"
    holds "and we pull" tam pull "$at:two" --key alice -o "$scratch/two.wasm"
    holds "with the same bytes" same "$scratch/monitor.wasm" "$scratch/two.wasm"
}

peer_oras() {
    start_registry
    local at=$address/monitor
    tam push "$scratch/monitor.wasm" "$at:ours" >/dev/null
    holds "oras pulls what we push" oras pull --plain-http "$at:ours" -o "$scratch/oras"
    mkdir -p "$scratch/fetched"
    local digest
    digest=sha256:$(sha256sum "$scratch/monitor.wasm" | cut -d ' ' -f 1)
    holds "oras fetches the module" oras blob fetch --plain-http --output "$scratch/fetched/m.wasm" "$at@$digest"
    holds "with the same bytes" same "$scratch/monitor.wasm" "$scratch/fetched/m.wasm"
    cp "$scratch/monitor.wasm" "$scratch/plugin.wasm"
    tar -C "$scratch" -czf "$scratch/plugin.tar.gz" ./plugin.wasm
    local type
    for type in application/wasm application/vnd.wasm.content.layer.v1+wasm application/vnd.module.wasm.content.layer.v1+wasm; do
        (cd "$scratch" && oras push --plain-http "$at:plain" "plugin.wasm:$type" >/dev/null)
        holds "we pull $type" tam pull "$at:plain" --store "$scratch/store" 
    done
    for type in application/vnd.oci.image.layer.v1.tar+gzip application/vnd.docker.image.rootfs.diff.tar.gzip; do
        (cd "$scratch" && oras push --plain-http "$at:packed" "plugin.tar.gz:$type" >/dev/null)
        holds "we pull $type" tam pull "$at:packed" -o "$scratch/unpacked.wasm"
        holds "with the same bytes" same "$scratch/monitor.wasm" "$scratch/unpacked.wasm"
    done
    holds "oras makes an index" oras manifest index create --plain-http "$at:both" ours plain
    holds "of one module in two images" tam pull "$at:both" -o "$scratch/either.wasm"
    holds "with the same bytes" same "$scratch/monitor.wasm" "$scratch/either.wasm"
    cp vectors/v1/abi/echo.wasm "$scratch/plugin.wasm"
    (cd "$scratch" && oras push --plain-http "$at:echo" plugin.wasm:application/wasm >/dev/null)
    holds "oras makes another" oras manifest index create --plain-http "$at:two-modules" ours echo
    ends "of which we do not guess" 2 tam pull "$at:two-modules"
    (cd "$scratch" && oras push --plain-http "$at:text" "config/tamandua/keys/alice.pub.pem:text/plain" >/dev/null)
    ends "what is no module is refused" 2 tam pull "$at:text"
}

peer_cosign() {
    start_registry
    local at=$address/monitor image offline=(--tlog-upload=false --use-signing-config=false --new-bundle-format=false)
    (cd "$scratch" && cosign generate-key-pair >/dev/null 2>&1)
    tam push "$scratch/monitor.wasm" "$at:one" >/dev/null
    image=$address/monitor@$(tam --json verify "$at:one" --key alice | sed 's/.*"image":"\([^"]*\)".*/\1/')
    local verify=(cosign verify --insecure-ignore-tlog=true --new-bundle-format=false)
    holds "cosign accepts our signature" "${verify[@]}" --key "$XDG_CONFIG_HOME/tamandua/keys/alice.pub.pem" "$image"
    ends "and not for bob" $COSIGN_NO_MATCH "${verify[@]}" --key "$XDG_CONFIG_HOME/tamandua/keys/bob.pub.pem" "$image"
    ends "nor for its own key" $COSIGN_NO_MATCH "${verify[@]}" --key "$scratch/cosign.pub" "$image"
    ends "as we do not" 4 tam verify "$at:one" --key "$scratch/cosign.pub"
    holds "cosign signs" cosign sign --key "$scratch/cosign.key" "${offline[@]}" "$image"
    holds "which we accept" tam verify "$at:one" --key "$scratch/cosign.pub"
    holds "beside ours" tam verify "$at:one" --key alice
    holds "bob signs as the third" tam sign "$at:one" --key bob
    holds "cosign accepts its own still" "${verify[@]}" --key "$scratch/cosign.pub" "$image"
    holds "and bob's" "${verify[@]}" --key "$XDG_CONFIG_HOME/tamandua/keys/bob.pub.pem" "$image"
    holds "all of them come along" tam pull "$at:one" --key "$scratch/cosign.pub" -o "$scratch/cosigned.wasm"
    holds "in the file" tam verify "$scratch/cosigned.wasm" --key "$scratch/cosign.pub"
    # Annotations of its user.
    holds "cosign signs with more" cosign sign --key "$scratch/cosign.key" "${offline[@]}" -a build=7 "$image"
    holds "which we accept" tam verify "$at:one" --key "$scratch/cosign.pub"
}

main() {
    local peers=("$@") peer
    [ ${#peers[@]} -gt 0 ] || peers=(registry skopeo oras cosign)
    for peer in "${peers[@]}"; do need "$peer"; done
    if [ ! -x "$TAM" ]; then
        rust_find
        cargo build --release --workspace --quiet
    fi
    prepare
    for peer in "${peers[@]}"; do
        echo "== $peer" >&2
        "peer_$peer"
    done
    echo "peers: $passed held, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" != 0 ]
}

main "$@"
