#!/bin/sh
# Installs what has been built below a prefix: the program, manual pages, completions, sample services.
# usage: tools/install.sh PREFIX
set -eu
prefix=$1
tam=target/release/tam
[ -x "$tam" ] || { echo "install: there is no $tam; run 'make samples' first" >&2; exit 1; }
install -d "$prefix/bin" "$prefix/share/man/man1" \
    "$prefix/share/bash-completion/completions" "$prefix/share/zsh/site-functions" \
    "$prefix/share/fish/vendor_completions.d"
install -m 755 "$tam" "$prefix/bin/tam"
"$tam" man --to "$prefix/share/man/man1" >/dev/null
"$tam" completions bash >"$prefix/share/bash-completion/completions/tam"
"$tam" completions zsh >"$prefix/share/zsh/site-functions/_tam"
"$tam" completions fish >"$prefix/share/fish/vendor_completions.d/tam.fish"
found=
for module in services/*/*.wasm; do
    [ -f "$module" ] || continue
    install -D -m 644 -t "$prefix/share/tamandua/services/$(basename "$module" .wasm)" "$module"
    found=yes
done
[ -n "$found" ] || echo "install: no sample service is built; 'make samples' builds them" >&2
echo "installed below $prefix"
