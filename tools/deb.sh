#!/usr/bin/env bash
# Builds the Debian package target/debian/tamandua_VERSION_ARCH.deb from what `make samples` has
# built. It needs cargo-deb 3 (cargo install cargo-deb), dpkg-dev, and xz.
#
#   TAM=PROGRAM tools/deb.sh        with another program than target/release/tam
#   SERVICES=FOLDER tools/deb.sh    with modules of another source tree
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/rust.sh && rust_find
tam=${TAM:-target/release/tam}
services=${SERVICES:-services}
files=target/debian-files
REVISION=1  # of the packaging; cli/Cargo.toml names it, too

fail() { echo "deb: $*" >&2; exit 1; }
[ -x "$tam" ] || fail "there is no $tam; run 'make samples' first"
cargo deb --version >/dev/null 2>&1 || fail "there is no cargo-deb; 'cargo install cargo-deb --locked' installs it"
command -v dpkg-shlibdeps >/dev/null || fail "there is no dpkg-shlibdeps; it is in the package dpkg-dev"
version=$("$tam" --version | cut -d' ' -f2)

# Names, versions and licences of the crates that the program links, then their notices, each once.
third_party() {
    echo "Crates that /usr/bin/tam links statically, with their licences; their notices follow."
    echo
    cargo tree --offline --package tam --edges normal --prefix none --format '{p}|{l}' \
        | sed 's/ (\*)$//' | grep -v ' (/' | sort -u | tee "$files/crates" | sed 's/|/: /'
    declare -A seen=()
    while IFS='|' read -r crate _; do
        folder=$(echo "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"${crate/ v/-}")
        for notice in "$folder"/{LICENSE,LICENCE,COPYING,NOTICE,license}*; do
            [ -f "$notice" ] || continue
            sum=$(sha256sum <"$notice")
            [ -z "${seen[$sum]-}" ] || continue
            seen[$sum]=1
            printf '\n==== %s: %s\n\n' "$crate" "${notice##*/}"
            cat "$notice"
        done
    done <"$files/crates"
    rm "$files/crates"
}

rm -rf "$files"
share=$files/usr/share
doc=$share/doc/tamandua
install -d "$files/usr/bin" "$files/etc/tamandua" "$share/man/man1" "$share/lintian/overrides" "$doc" \
    "$share/bash-completion/completions" "$share/zsh/vendor-completions" \
    "$share/fish/vendor_completions.d" "$files/usr/lib/systemd/system"
install -m 755 "$tam" "$files/usr/bin/tam"
# The debug symbols are left out: they are three quarters of the program.
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$files/usr/bin/tam"
"$tam" man --to "$share/man/man1" >/dev/null
"$tam" completions bash >"$share/bash-completion/completions/tam"
"$tam" completions zsh >"$share/zsh/vendor-completions/_tam"
"$tam" completions fish >"$share/fish/vendor_completions.d/tam.fish"
install -m 644 tools/debian/tamandua@.service "$files/usr/lib/systemd/system/"
# `tam node` without a file prints a sample and ends with 2.
{ "$tam" node 2>/dev/null || true; } | sed 's/"r1"/"example"/; s,tamandua/r1",tamandua/example",' \
    >"$files/etc/tamandua/example.toml"
grep -q '^name = "example"$' "$files/etc/tamandua/example.toml" || fail "the sample node file has another name"
# Modules and captures, in the folders that they have in the source tree.
count=0
for module in "$services"/*/*.wasm; do
    [ -f "$module" ] || continue
    name=$(basename "$module" .wasm)
    install -D -m 644 -t "$share/tamandua/services/$name" "$module"
    if [ -d "services/$name/captures" ]; then
        install -D -m 644 -t "$share/tamandua/services/$name/captures" "services/$name/captures"/*
    fi
    count=$((count + 1))
done
[ "$count" -ge 11 ] || fail "only $count of the sample services are built; run 'make samples' first"
# The pages that messages of the program name.
for page in docs/{start,guides,reference,design}/*.{md,svg}; do
    [ ! -f "$page" ] || install -D -m 644 "$page" "$doc/$page"
done
install -m 644 README.md SPECIFICATION.md SECURITY.md "$doc/"
install -m 644 tools/debian/lintian-overrides "$share/lintian/overrides/tamandua"
third_party >"$doc/third-party.txt"
cp CHANGELOG.md "$doc/changelog"
cat >"$doc/changelog.Debian" <<END
tamandua ($version-$REVISION) unstable; urgency=medium

  * Version $version; what it brings is in changelog.gz.

 -- The Tamandua authors <maintainers@tamandua.example>  $(date -R -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}")
END
gzip -9n "$doc/third-party.txt" "$doc/changelog" "$doc/changelog.Debian" "$share"/man/man1/*
cargo deb --quiet --offline --package tam --no-build --no-strip --no-dbgsym --output "target/debian/tamandua_$version-${REVISION}_$(dpkg --print-architecture).deb"
