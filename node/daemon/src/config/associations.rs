//! `[associations]` of the node file: addresses at which a node accepts associations.

use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Most addresses of one node: each is a rule of the front door.
const LISTEN_MAX: usize = 8;

/// Addresses of the node's associations, and its token for other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssociationsText {
    /// Addresses of the node, each with its UDP port.
    #[serde(deserialize_with = "listen")]
    pub listen: Vec<SocketAddr>,
    /// File with the token that grants this node's permissions at others.
    #[serde(default)]
    pub token: Option<PathBuf>,
}

fn listen<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<SocketAddr>, D::Error> {
    let addresses = Vec::<SocketAddr>::deserialize(value)?;
    if addresses.is_empty() || addresses.len() > LISTEN_MAX {
        let problem = format!("{} addresses; 1 to {LISTEN_MAX} are allowed", addresses.len());
        return Err(de::Error::custom(problem));
    }
    let mut seen = BTreeSet::new();
    for address in &addresses {
        let ip = address.ip();
        // The front door takes exactly these datagrams from what passes the node.
        if ip.is_unspecified() || ip.is_multicast() || address.port() == 0 {
            let problem = format!(
                "'{address}' is no address at which one node is found; write one of the node's own, with a UDP port"
            );
            return Err(de::Error::custom(problem));
        }
        if !seen.insert(address) {
            return Err(de::Error::custom(format!("'{address}' is there twice")));
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AssociationsText, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn addresses_are_those_of_one_node() {
        let good = read("listen = [\"10.0.1.1:7443\", \"[fd00::1]:7443\"]").unwrap();
        assert_eq!((good.listen.len(), good.token), (2, None));
        for (text, why) in [
            ("listen = []", "0 addresses; 1 to 8"),
            ("listen = [\"0.0.0.0:7443\"]", "no address at which one node is found"),
            ("listen = [\"[::]:7443\"]", "no address at which one node is found"),
            ("listen = [\"224.0.0.1:7443\"]", "no address at which one node is found"),
            ("listen = [\"10.0.1.1:0\"]", "no address at which one node is found"),
            ("listen = [\"10.0.1.1:1\", \"10.0.1.1:1\"]", "is there twice"),
            ("listen = [\"10.0.1.1\"]", "invalid socket address"),
            ("token = \"a\"", "missing field `listen`"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
