//! Kernel parameters below `/proc/sys`, named as in sysctl(8), of the calling thread's network
//! namespace. No parameter and no default is built in.

use std::io;
use std::path::{Path, PathBuf};

/// Longest key; four levels of names with a device name among them are far shorter.
const KEY_LENGTH_MAX: usize = 256;

/// Error of reading or writing a parameter.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The text is no key.
    #[error(
        "'{key}' is no kernel parameter's name; write it as net.ipv4.ip_forward, or with '/' where a device's name has a dot"
    )]
    Key {
        /// Key as given, shortened.
        key: String,
    },
    /// The kernel has no such parameter.
    #[error("this kernel has no parameter {key}; the feature is not built in or not loaded")]
    Missing {
        /// Key of the parameter.
        key: String,
    },
    /// The kernel refused the access.
    #[error("cannot {action} the kernel parameter {key}: {source}")]
    Refused {
        /// Action: `read` or `set`.
        action: &'static str,
        /// Key of the parameter.
        key: String,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// Reads a parameter, without the final line break.
///
/// # Errors
/// The parameter does not exist or cannot be read.
pub fn read(key: &str) -> Result<String, SysctlError> {
    match std::fs::read_to_string(path_of(key)?) {
        Ok(value) => Ok(value.trim_end().to_owned()),
        Err(source) => Err(error("read", key, source)),
    }
}

/// Sets a parameter.
///
/// # Errors
/// The parameter does not exist, the value is refused, or the caller may not.
pub fn write(key: &str, value: &str) -> Result<(), SysctlError> {
    std::fs::write(path_of(key)?, value).map_err(|source| error("set", key, source))
}

fn error(action: &'static str, key: &str, source: io::Error) -> SysctlError {
    let key = key.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => SysctlError::Missing { key },
        _ => SysctlError::Refused { action, key, source },
    }
}

/// Returns the path of a key. As in sysctl(8), the first separator in the key is the separator of
/// all of it.
fn path_of(key: &str) -> Result<PathBuf, SysctlError> {
    let refused = || SysctlError::Key { key: key.chars().take(KEY_LENGTH_MAX).collect() };
    let separator = key.find(['.', '/']).ok_or_else(refused)?;
    let parts: Vec<&str> = if key[separator..].starts_with('/') {
        key.split('/').collect()
    } else {
        key.split('.').collect()
    };
    let bad = |part: &&str| {
        part.is_empty() || *part == "." || *part == ".." || part.contains(['/', '\0'])
    };
    if key.len() > KEY_LENGTH_MAX || parts.iter().any(bad) {
        return Err(refused());
    }
    Ok(parts.iter().fold(Path::new("/proc/sys").to_owned(), |path, part| path.join(part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::in_namespace;
    use crate::scratch::Scratch;

    #[test]
    fn a_key_with_a_dotted_device_is_written_with_slashes() {
        let path = path_of("net/ipv4/conf/eth0.10/rp_filter").unwrap();
        assert_eq!(path, Path::new("/proc/sys/net/ipv4/conf/eth0.10/rp_filter"));
        assert_eq!(
            path_of("net.core.somaxconn").unwrap(),
            Path::new("/proc/sys/net/core/somaxconn")
        );
    }

    #[test]
    fn a_key_that_leaves_proc_sys_is_refused() {
        for bad in ["", "net", "net/../../etc/passwd", "net..core", "/etc/passwd", "net.a/b"] {
            assert!(matches!(path_of(bad), Err(SysctlError::Key { .. })), "{bad:?}");
        }
    }

    #[test]
    fn an_unknown_parameter_is_named() {
        let message = read("net.ipv4.no_such_thing").unwrap_err().to_string();
        assert!(message.contains("no parameter net.ipv4.no_such_thing"), "{message}");
    }

    #[test]
    fn a_parameter_is_set_in_its_namespace_only() {
        if !testbase::root_or_skip("a network namespace") {
            return;
        }
        let scratch = Scratch::new("sysctl");
        let before = read("net.ipv4.conf.default.rp_filter").unwrap();
        let other = if before == "2" { "1" } else { "2" };
        let inside = in_namespace(&scratch.ns, || {
            write("net.ipv4.conf.default.rp_filter", other).unwrap();
            read("net.ipv4.conf.default.rp_filter").unwrap()
        });
        assert_eq!(inside.unwrap(), other);
        assert_eq!(read("net.ipv4.conf.default.rp_filter").unwrap(), before);
    }
}
