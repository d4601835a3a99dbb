//! `[[session]]` of a node file: what a session shall be promised.

use serde::Deserialize;
use session::{Reservation, Share, Size, VirtualProcessor, Weight};
use std::collections::BTreeMap;
use toml::Spanned;
use units::Name;

/// Syntax of a session.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionText {
    /// Name of the session.
    pub name: Spanned<Name>,
    /// Virtual processors.
    #[serde(default)]
    cpu: Vec<VirtualProcessor>,
    /// Time of packet cores.
    #[serde(default)]
    below: Option<Share>,
    /// Memory.
    #[serde(default)]
    memory: Option<Size>,
    /// Packets that wait for it.
    #[serde(default)]
    queue: Option<Size>,
    /// Shares of ports' rates.
    #[serde(default)]
    send: BTreeMap<Name, Share>,
    /// Weight for what nobody reserved or uses.
    #[serde(default)]
    weight: Weight,
}

impl SessionText {
    /// Returns the reservation that is desired.
    #[must_use]
    pub fn reservation(&self) -> Reservation {
        Reservation {
            processors: self.cpu.clone(),
            below: self.below,
            memory: self.memory.map(|size| size.0),
            queue: self.queue.map(|size| size.0),
            send: self.send.clone(),
            weight: self.weight,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::NodeFile;

    fn read(lines: &str) -> Result<NodeFile, String> {
        let text = format!("name = \"r1\"\n[[session]]\nname = \"gold\"\n{lines}\n");
        NodeFile::parse(&text, "node.toml").map_err(|error| error.to_string())
    }

    #[test]
    fn a_session_is_written_as_on_the_command_line() {
        let file = read(
            "cpu = [\"1ms/4ms+extra\", \"2ms/20ms\"]\nbelow = \"0.4ms/4ms\"\nmemory = \"64MiB\"\n\
             queue = \"256KiB\"\nsend = { right = \"2ms/6ms\" }\nweight = 200",
        )
        .unwrap();
        let reservation = file.wanted.sessions[0].get_ref().reservation();
        let json = serde_json::to_value(&reservation).unwrap();
        assert_eq!(json["cpu"][1], "2ms/20ms");
        assert_eq!((&json["below"], &json["memory"]), (&"400us/4ms".into(), &"64MiB".into()));
        assert_eq!(json["send"]["right"], "2ms/6ms");
        assert_eq!(
            read("").unwrap().wanted.sessions[0].get_ref().reservation(),
            Default::default()
        );
    }

    #[test]
    fn a_mistake_in_a_session_has_its_line() {
        for (line, says) in [
            ("cpus = [\"1ms/4ms\"]", "'cpu'"),
            ("cpu = [\"5ms/4ms\"]", "more than there is"),
            ("memory = \"64MB\"", "MiB"),
            ("weight = 0", "between 1 and 1000"),
        ] {
            let said = read(line).unwrap_err();
            assert!(said.contains("line 4") && said.contains(says), "{said}");
        }
    }
}
