//! `c/plain_xsk.c`, the baseline of `tam bench user`, with the C compiler and
//! the flags that the `cc` crate finds.

use std::path::Path;

pub fn build(out: &Path) {
    let program = out.join("plain_xsk");
    let compiler = cc::Build::new().opt_level(2).debug(false).warnings(true).get_compiler();
    let mut command = compiler.to_command();
    command.args(["-Wextra", "-Werror", "-o"]).arg(&program).arg("c/plain_xsk.c");
    let output = command.output().unwrap_or_else(|error| {
        panic!(
            "no C compiler ({error}): it builds the plain AF_XDP baseline; install it with \
             'apt-get install gcc libc6-dev linux-libc-dev' (Debian, Ubuntu)"
        )
    });
    assert!(
        output.status.success(),
        "{command:?} refused c/plain_xsk.c:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("cargo:rerun-if-changed=c/plain_xsk.c");
}
