# shellcheck shell=sh
# Sourced from the project's root: finds a Rust that is new enough. Installs nothing.

# The minor version of a rustc, or 0 when there is none: 95 for "rustc 1.95.0 (…)".
rust_minor() {
    minor=$("$1" -V 2>/dev/null | sed -n 's/^rustc 1\.\([0-9][0-9]*\).*/\1/p')
    echo "${minor:-0}"
}

# The minor version that the workspace asks for.
rust_minimum() {
    sed -n 's/^rust-version = "1\.\([0-9]*\)"/\1/p' Cargo.toml
}

# Puts the first directory with a cargo and a new enough rustc in front of PATH:
# what PATH has already, then rustup's, then the distribution's.
rust_find() {
    wanted=$(rust_minimum)
    command -v cargo >/dev/null && [ "$(rust_minor rustc)" -ge "$wanted" ] && return 0
    for dir in "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin" /usr/local/bin /usr/bin; do
        [ -x "$dir/cargo" ] || continue
        [ "$(rust_minor "$dir/rustc")" -ge "$wanted" ] || continue
        PATH="$dir:$PATH"
        export PATH
        return 0
    done
    return 1
}
