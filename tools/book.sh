#!/bin/sh
# Renders the documents as a site with search: target/book/html/index.html. Installs mdBook below target/ if none is there.
set -eu
version=0.5.4
cd "$(dirname "$0")/.."
# shellcheck source=tools/rust.sh
. tools/rust.sh
rust_find || { echo "book: no Rust of the workspace's version; run tools/setup.sh" >&2; exit 1; }
mdbook=$(command -v mdbook || echo target/mdbook/bin/mdbook)
if ! "$mdbook" --version 2>/dev/null | grep -q "v${version%.*}[.]"; then
    mdbook=target/mdbook/bin/mdbook
    [ -x "$mdbook" ] || cargo install mdbook --version "$version" --locked --no-default-features --features search \
        --debug --root target/mdbook --target-dir target/mdbook/build
fi
cargo xtask book target/book
"$mdbook" build target/book
echo "the site is target/book/html/index.html"
