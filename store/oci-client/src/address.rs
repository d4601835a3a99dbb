//! References to modules in registries: `HOST[:PORT]/NAME[:TAG|@sha256:…]`.
//!
//! A reference always names its registry: there is no default registry, and no confusion with
//! modules of the local store. Source: OCI distribution specification 1.1, "Pulling manifests", for
//! names and tags.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use module_store::Digest;

/// Longest name with its registry, in bytes (distribution specification: clients may limit it to
/// 255).
pub const NAME_LENGTH_MAX: usize = 255;
/// Longest tag, in bytes (distribution specification).
pub const TAG_LENGTH_MAX: usize = 128;
/// Optional prefix, which skopeo writes.
const SCHEME: &str = "docker://";

/// Address of a registry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Registry {
    /// Host name or IP address, without the brackets of IPv6.
    pub host: String,
    /// TCP port; `None` for the default of the scheme.
    pub port: Option<u16>,
}

/// Tag or digest of a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagOrDigest {
    /// Tag, which the registry resolves.
    Tag(String),
    /// Digest of an image manifest.
    Digest(Digest),
}

/// Reference to a module in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Registry.
    pub registry: Registry,
    /// Repository in the registry, such as `team/monitor`.
    pub name: String,
    /// Tag or digest. `None` means `latest` for a pull, and the module's version for a push.
    pub tag_or_digest: Option<TagOrDigest>,
}

/// Parse error of a reference. The fault of its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no reference to a registry: {why}; write HOST[:PORT]/NAME[:TAG|@sha256:…]")]
pub struct ReferenceError {
    text: String,
    why: &'static str,
}

impl Registry {
    /// Returns true if the host is this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let address = self.host.parse::<IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

/// Returns true if the text refers to a registry rather than to a file or a name of the local
/// store: its first component is a host with a dot or a port, or `localhost`.
#[must_use]
pub fn is_reference(text: &str) -> bool {
    text.starts_with(SCHEME)
        || text.split_once('/').is_some_and(|(host, _)| {
            host == "localhost"
                || (host.contains(['.', ':']) && !host.starts_with('.') && !host.starts_with('/'))
        })
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let shown = || text.chars().take(96).flat_map(char::escape_debug).collect();
        let wrong = |why| ReferenceError { text: shown(), why };
        let plain = text.strip_prefix(SCHEME).unwrap_or(text);
        let (host, rest) = plain.split_once('/').ok_or_else(|| wrong("it names no registry"))?;
        let registry: Registry = host.parse().map_err(wrong)?;
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => {
                let digest = digest.parse().map_err(|_| wrong("what follows '@' is no digest"))?;
                (rest, Some(digest))
            }
            None => (rest, None),
        };
        let (name, tag) = match rest.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (rest, None),
        };
        if !is_name(name) || plain.len() - rest.len() + name.len() > NAME_LENGTH_MAX {
            return Err(wrong("names are lower-case letters, digits, '.', '_', '-' and '/'"));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(wrong("tags are letters, digits, '.', '_' and '-', 128 at most"));
        }
        // The digest takes precedence over a tag beside it.
        let tag_or_digest =
            digest.map(TagOrDigest::Digest).or(tag.map(|tag| TagOrDigest::Tag(tag.to_owned())));
        Ok(Self { registry, name: name.to_owned(), tag_or_digest })
    }
}

impl FromStr for Registry {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or("a bracket is not closed")?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| "that is no IPv6 address")?;
                let port = if port.is_empty() { None } else { port.strip_prefix(':') };
                (host, port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':');
        let (first, last) = (host.bytes().next(), host.bytes().last());
        let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        let is_address = host.contains(':');
        let has_ends = is_address || (is_end(first) && is_end(last));
        if !host.bytes().all(is_host) || !has_ends {
            return Err("its registry is no host");
        }
        let port = port.map(|port| port.parse().ok().filter(|port| *port != 0));
        let port = port.map(|port| port.ok_or("its registry's port is none")).transpose()?;
        Ok(Self { host: host.to_ascii_lowercase(), port })
    }
}

/// Checks a name: components of `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`, separated by slashes.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_inner = |byte: u8| is_word(byte) || matches!(byte, b'.' | b'_' | b'-');
        let ends = [part.bytes().next(), part.bytes().last()];
        let between = part.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        ends.iter().all(|end| end.is_some_and(is_word))
            && part.bytes().all(is_inner)
            && between.into_iter().all(|gap| {
                matches!(gap, "" | "." | "_" | "__") || gap.bytes().all(|byte| byte == b'-')
            })
    };
    name.len() <= NAME_LENGTH_MAX && name.split('/').all(is_part)
}

/// Checks a tag: `[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}`.
pub(crate) fn is_tag(tag: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_part = |byte: u8| is_first(byte) || matches!(byte, b'.' | b'-');
    tag.len() <= TAG_LENGTH_MAX
        && tag.bytes().next().is_some_and(is_first)
        && tag.bytes().all(is_part)
}

impl fmt::Display for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Display for TagOrDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Digest(digest) => fmt::Display::fmt(digest, f),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.name)?;
        match &self.tag_or_digest {
            Some(TagOrDigest::Tag(tag)) => write!(f, ":{tag}"),
            Some(TagOrDigest::Digest(digest)) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_reference_reads_back_as_it_is_shown() {
        let by_digest = format!("[::1]:5000/a/b__c/d-e@{DIGEST}");
        for text in [
            "localhost/monitor",
            "localhost:5000/monitor:0.1.0",
            "ghcr.io/team/monitor:_x",
            &by_digest,
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.to_string(), text);
            assert_eq!(format!("docker://{text}").parse(), Ok(reference));
            assert!(is_reference(text), "{text}");
        }
        let both: Reference = format!("ghcr.io/monitor:1@{DIGEST}").parse().unwrap();
        assert_eq!(both.tag_or_digest, Some(TagOrDigest::Digest(DIGEST.parse().unwrap())));
    }

    #[test]
    fn an_invalid_reference_is_refused() {
        let long = format!("ghcr.io/{}", "a".repeat(NAME_LENGTH_MAX));
        let tag = format!("ghcr.io/a:{}", "t".repeat(TAG_LENGTH_MAX + 1));
        for bad in [
            "",
            "monitor",
            "/monitor",
            "ghcr.io/",
            "ghcr.io/Monitor",
            "ghcr.io/a//b",
            "ghcr.io/a..b",
            "ghcr.io/a___b",
            "ghcr.io/-a",
            "ghcr.io/a:",
            "ghcr.io/a:.x",
            "ghcr.io/a@sha256:00",
            "host:0/a",
            "host:99999/a",
            "ho st/a",
            "user@host/a",
            "[::1/a",
            "[x]/a",
            "-host/a",
            "ghcr.io/a?b",
            "ghcr.io/../a",
            "ghcr.io/a%2fb",
            &long,
            &tag,
        ] {
            assert!(bad.parse::<Reference>().is_err(), "{bad}");
        }
    }

    #[test]
    fn files_and_names_of_the_store_are_no_references() {
        for other in
            ["monitor", "monitor:0.1.0", "dir/monitor.wasm", "./a.b/c", "../x", "/tmp/x", DIGEST]
        {
            assert!(!is_reference(other), "{other}");
        }
        let registry = |text: &str| text.parse::<Registry>().unwrap();
        assert!(registry("127.0.0.7:5000").is_loopback() && registry("[::1]").is_loopback());
        assert!(
            !registry("10.0.0.1").is_loopback() && !registry("localhost.evil.org").is_loopback()
        );
    }
}
