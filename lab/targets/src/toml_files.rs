//! Any text as a node file, and as a lab file.

use std::collections::BTreeSet;

use daemon::{NodeFile, SAMPLE_CONFIG};
use node::Node;
use topology::{LINKS_MAX, Lab, NODES_MAX};

/// Parses a node file; adds the ports of an accepted one to a node.
pub fn node(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let file = match NodeFile::parse(text, "node.toml") {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(!file.fast_path.name().is_empty());
    if let Err(error) = Node::new(file.name, file.ports) {
        assert!(!error.to_string().is_empty());
    }
}

pub fn node_seeds() -> Vec<Vec<u8>> {
    vec![SAMPLE_CONFIG.into()]
}

/// Parses a topology; checks that an accepted one's plan is consistent.
pub fn topology(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let plan = match Lab::parse(text, "lab.toml") {
        Ok(plan) => plan,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!((1..=NODES_MAX).contains(&plan.nodes.len()) && plan.links.len() <= LINKS_MAX);
    let names: BTreeSet<_> = plan.nodes.iter().map(|node| &node.name).collect();
    assert_eq!(names.len(), plan.nodes.len());
    let ends = plan.links.iter().flat_map(|link| &link.ends);
    for end in ends {
        assert!(plan.node(end.node.as_str()).is_some());
    }
}
