//! Any text as a lab file: the plan of what is accepted holds together.
//!
//! `cargo +nightly fuzz run parse_topology --fuzz-dir lab/fuzz`

#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use topology::{LINKS_MAX, Lab, NODES_MAX};

fuzz_target!(|text: &str| {
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
});
