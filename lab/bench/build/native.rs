//! Programs in C that are measured as processes, `c/*.c`, compiled with the compiler and the flags
//! that the `cc` crate finds.

use std::path::Path;

/// Baselines of `tam bench user` and of `tam reproduce sane-table1 sane-5`.
const PROGRAMS: [&str; 2] = ["plain_xsk", "sha1"];

pub fn build(out: &Path) {
    for name in PROGRAMS {
        let (program, source) = (out.join(name), format!("c/{name}.c"));
        let compiler = cc::Build::new().opt_level(2).debug(false).warnings(true).get_compiler();
        let mut command = compiler.to_command();
        command.args(["-Wextra", "-Werror", "-o"]).arg(&program).arg(&source);
        let output = command.output().unwrap_or_else(|error| {
            panic!(
                "no C compiler ({error}): it builds what this program is compared with; install it \
                 with 'apt-get install gcc libc6-dev linux-libc-dev' (Debian, Ubuntu)"
            )
        });
        assert!(
            output.status.success(),
            "{command:?} refused {source}:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        println!("cargo:rerun-if-changed={source}");
    }
}
