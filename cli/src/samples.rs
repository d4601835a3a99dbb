//! Modules of the sample services: of the source tree, or of an installed package.
//!
//! ```text
//! source tree   services/NAME/NAME.wasm              below the current folder or above tam
//! package       PREFIX/share/tamandua/services/NAME/NAME.wasm      beside PREFIX/bin/tam
//! ```

use crate::failure::Failure;
use api::ErrorCode;
use std::path::{Path, PathBuf};

/// Folder of a package's modules, from the folder that has `bin`; below it they lie as in the source
/// tree.
const PACKAGED: &str = "share/tamandua";

/// Returns the module of a sample service that is built already.
///
/// # Errors
/// The module is not built; the message names the folders that were searched.
pub fn module(name: &str) -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().unwrap_or_default();
    let candidates = candidates(name, &program);
    candidates.iter().find(|file| file.is_file()).cloned().ok_or_else(|| {
        let last = candidates.last().map_or_else(String::new, |file| file.display().to_string());
        let message = format!(
            "the sample service '{name}' is neither in a source tree, as services/{name}/{name}.wasm, nor at {last}"
        );
        Failure::new(ErrorCode::NotFound, message)
            .help("`make services` builds it in the source tree, `make install` installs it beside tam")
    })
}

/// Returns the paths where a module may be, in order.
fn candidates(name: &str, program: &Path) -> Vec<PathBuf> {
    let module = format!("services/{name}/{name}.wasm");
    // The folders are above PREFIX/target/release/tam and PREFIX/bin/tam.
    let above = program.ancestors().skip(1).take(4);
    let in_tree = std::iter::once(Path::new("")).chain(above).map(|folder| folder.join(&module));
    let packaged = program.ancestors().nth(2).map(|prefix| prefix.join(PACKAGED).join(&module));
    in_tree.chain(packaged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_has_its_modules_beside_the_program() {
        let candidates = candidates("monitor", Path::new("/opt/tam/bin/tam"));
        assert_eq!(candidates[0], Path::new("services/monitor/monitor.wasm"));
        let last = candidates.last().unwrap();
        assert_eq!(last, Path::new("/opt/tam/share/tamandua/services/monitor/monitor.wasm"));
    }

    #[test]
    fn a_missing_module_is_reported_with_the_searched_paths() {
        let failure = module("never-written").unwrap_err();
        assert_eq!(failure.code, ErrorCode::NotFound);
        assert!(
            failure.message.contains("share/tamandua/services/never-written/never-written.wasm")
        );
    }
}
