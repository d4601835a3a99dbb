//! Topology file: its syntax, and the plan that it stands for.
//!
//! ```toml
//! name = "demo"
//! [[host]]
//! name = "client"
//! [[router]]
//! name = "r1"
//! node = { }                  # optional: a node file without ports
//! [[link]]
//! ends = ["client", "r1"]     # optional: rate = "100Mbit", mtu = 1500, vlan = 10,
//!                             # and what quality.rs has: delay = "10ms", loss = "0.1%", …
//! ```

use std::collections::BTreeMap;

use units::{BitsPerSecond, Name};

use crate::error::{Place, PlanError};
use crate::plan::{LinkSpec, NodeKind, NodeSpec, Plan, plan};
use crate::quality::{self, Quality, parse_rate};
use crate::read::{Field, Fields, Source};
use crate::suggest::did_you_mean_or_list;

/// Most links: they have the networks 10.77.1.0/24 to 10.77.250.0/24, one each.
pub const LINKS_MAX: usize = 250;
/// Most nodes: a tree of [`LINKS_MAX`] links.
pub const NODES_MAX: usize = LINKS_MAX + 1;
/// Largest file in bytes, ten times one with the most nodes and links and generous comments.
const FILE_LENGTH_MAX: usize = 1024 * 1024;

const MTU_USUAL: u32 = 1_500;
/// Smallest MTU that IPv6 works with (RFC 8200, section 5).
const MTU_MIN: u64 = 1_280;
/// Largest MTU that a node accepts.
const MTU_MAX: u64 = 9_000;
/// Highest VLAN identifier; 0 and 4095 are reserved (IEEE 802.1Q).
const VLAN_MAX: u64 = 4_094;

/// Namespace of [`Lab::parse`].
#[derive(Clone, Copy, Debug)]
pub enum Lab {}

impl Lab {
    /// Parses a topology and plans it: every name, address and route is decided, and nothing is
    /// made. `file_name` appears in messages only.
    ///
    /// # Errors
    /// The text is no topology; the error has the line and a suggestion.
    pub fn parse(text: &str, file_name: &str) -> Result<Plan, PlanError> {
        if text.len() > FILE_LENGTH_MAX {
            let (file, length) = (file_name.to_owned(), text.len());
            return Err(PlanError::Length { file, length, limit: FILE_LENGTH_MAX });
        }
        let source = Source { file: file_name, text };
        let table = source.parse()?;
        let root = Fields::root(source, &table, &["name", "host", "router", "link"])?;
        let name = name_of(&root.required("name", "name = \"demo\"")?)?;
        let nodes = nodes_of(&root)?;
        if nodes.is_empty() {
            return Err(PlanError::Empty { file: file_name.to_owned() });
        }
        limit(file_name, "nodes", nodes.len(), NODES_MAX, "")?;
        let keys = [&["ends", "rate", "mtu", "vlan"], &quality::KEYS[..]].concat();
        let tables = root.tables("link", "[[link]]", &keys)?;
        let why = ": each has its own network 10.77.N.0/24";
        limit(file_name, "links", tables.len(), LINKS_MAX, why)?;
        let links =
            tables.iter().map(|table| link_of(table, &nodes)).collect::<Result<Vec<_>, _>>()?;
        Ok(plan(name, nodes, links))
    }
}

fn limit(
    file: &str,
    what: &'static str,
    found: usize,
    limit: usize,
    why: &'static str,
) -> Result<(), PlanError> {
    if found <= limit {
        return Ok(());
    }
    Err(PlanError::TooMany { file: file.to_owned(), what, found, limit, why })
}

/// Returns the nodes: hosts first, then routers, each in the order of the file.
fn nodes_of(root: &Fields<'_, '_>) -> Result<Vec<NodeSpec>, PlanError> {
    let mut nodes = Vec::new();
    let mut lines = BTreeMap::new();
    for (key, what, kind, allowed) in [
        ("host", "[[host]]", NodeKind::Host, &["name"][..]),
        ("router", "[[router]]", NodeKind::Router, &["name", "node"][..]),
    ] {
        for table in root.tables(key, what, allowed)? {
            let field = table.required("name", "name = \"r1\"")?;
            let name = name_of(&field)?;
            let place = field.place();
            if let Some(&first_line) = lines.get(&name) {
                return Err(PlanError::Duplicate { place, name: name.to_string(), first_line });
            }
            lines.insert(name.clone(), place.line);
            let node = table.get("node").map(|field| field.foreign_table()).transpose()?;
            nodes.push(NodeSpec { name, kind, node: node.unwrap_or_default() });
        }
    }
    Ok(nodes)
}

fn link_of(table: &Fields<'_, '_>, nodes: &[NodeSpec]) -> Result<LinkSpec, PlanError> {
    let field = table.required("ends", "ends = [\"client\", \"r1\"]")?;
    let ends = field.texts()?;
    let [first, second] = ends.as_slice() else {
        return Err(PlanError::EndCount { place: field.place(), found: ends.len() });
    };
    let ends = [end_of(first, nodes)?, end_of(second, nodes)?];
    if ends[0] == ends[1] {
        let name = nodes[ends[0]].name.to_string();
        return Err(PlanError::SelfLink { place: field.place(), name });
    }
    let number = |key, range, why| table.get(key).map(|field| field.number(range, why)).transpose();
    let mtu = number("mtu", (MTU_MIN, MTU_MAX), ", what IPv6 needs and what a node takes")?;
    let vlan = number("vlan", (1, VLAN_MAX), "")?;
    let quality = Quality::read(table)?;
    // A link with a quality has the rate as a part of it.
    let rate = table.get("rate").filter(|_| quality.is_none());
    let rate = rate.map(|field| rate_of(&field)).transpose()?;
    Ok(LinkSpec {
        ends,
        // Both were just found to be in a range far below.
        mtu: mtu.and_then(|mtu| u32::try_from(mtu).ok()).unwrap_or(MTU_USUAL),
        vlan: vlan.and_then(|vlan| u16::try_from(vlan).ok()),
        rate,
        quality,
    })
}

/// Returns the index of a node in the list.
fn end_of((name, place): &(&str, Place), nodes: &[NodeSpec]) -> Result<usize, PlanError> {
    nodes.iter().position(|node| node.name.as_str() == *name).ok_or_else(|| {
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        PlanError::UnknownEnd {
            place: place.clone(),
            name: name.chars().take(64).flat_map(char::escape_default).collect(),
            suggestion: did_you_mean_or_list(name, names),
        }
    })
}

fn name_of(field: &Field<'_, '_>) -> Result<Name, PlanError> {
    Name::new(field.text()?).map_err(|source| PlanError::Name { place: field.place(), source })
}

fn rate_of(field: &Field<'_, '_>) -> Result<BitsPerSecond, PlanError> {
    let text = field.text()?;
    parse_rate(text).ok_or_else(|| PlanError::Rate {
        place: field.place(),
        found: text.chars().take(64).flat_map(char::escape_default).collect(),
    })
}
