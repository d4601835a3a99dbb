//! Node in a link that delays, loses or reorders packets: its node file, and the service that does
//! so.
//!
//! ```text
//!   ═ left ─ bridge ─ right ═      services/flakeway, in a session that has the clock's port
//!       tick ═══════ tock
//! ```

use crate::failure::Failure;
use crate::samples;
use api::{Client, ErrorCode};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use toml::{Table, Value};
use topology::{LinkNode, NodeKind, Plan};
use units::Name;

/// Name of the service and of its module.
const SERVICE: &str = "flakeway";
/// Name of the service's session.
const SESSION: &str = "link";
/// Rate of the clock's port, at which a byte of a frame takes a microsecond
/// (docs/guides/flakeway.md).
const CLOCK_RATE: &str = "8Mbit/s";
/// Share of the session in that rate: nearly all, in periods shorter than a link's delays.
const CLOCK_SHARE: &str = "9900us/10ms";
/// Queue of the session: a burst of 512 packets while the service has no core.
const QUEUE: &str = "2MiB";
/// Time within which a service has to run.
const START_TIME_MAX: Duration = Duration::from_secs(20);
/// Interval at which the state of a starting service is polled.
const ASK_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the service's file, if the plan has a link that needs it.
///
/// # Errors
/// The file that is named does not exist, or none is named and the samples lack it.
pub fn module_for(plan: &Plan, named: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let Some(link) = plan.links.iter().find(|link| link.through.is_some()) else { return Ok(None) };
    let [one, other] = &link.ends;
    let needs = format!("the link from {} to {} needs a service", one.node, other.node);
    let found = match named {
        Some(path) if path.is_file() => path.to_path_buf(),
        Some(path) => {
            let message = format!("{needs}: {} is not here", path.display());
            return Err(Failure::new(ErrorCode::NotFound, message).help("check --flakeway"));
        }
        None => samples::module(SERVICE).map_err(|failure| {
            let message = format!("{needs}: {}", failure.message);
            Failure { message, ..failure }
        })?,
    };
    let whole = std::path::absolute(&found);
    whole.map(Some).map_err(|error| Failure::io(format!("finding {}", found.display()), &error))
}

/// Adds to a node file the settings of a node in a link, beside its name and its paths.
pub fn add_to(table: &mut Table, through: &LinkNode, module: &Path) {
    let text = |text: &str| Value::String(text.to_owned());
    let texts = |all: &[&str]| Value::Array(all.iter().copied().map(text).collect());
    let table_of = |fields: Vec<(&str, Value)>| {
        fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Table>()
    };
    let [left, right] = LinkNode::PORTS;
    let [tick, tock] = LinkNode::CLOCK;
    let port = |device: &str| table_of(vec![("name", text(device)), ("device", text(device))]);
    let mut clock = port(tick);
    clock.insert("rate".to_owned(), text(CLOCK_RATE));
    let ports = [port(left), port(right), clock, port(tock)].map(Value::Table);
    let share = table_of(vec![(tick, text(CLOCK_SHARE))]);
    let session = table_of(vec![
        ("name", text(SESSION)),
        ("queue", text(QUEUE)),
        ("send", Value::Table(share)),
    ]);
    let mut rules = Vec::new();
    for end in [left, right] {
        rules.extend([format!("in {end}"), format!("ethertype arp in {end}")]);
    }
    rules.push(format!("ethertype 0x88b5 in {tock}"));
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let service = table_of(vec![
        ("name", text(SERVICE)),
        ("module", text(&module.display().to_string())),
        ("session", text(SESSION)),
        ("rules", texts(&rules)),
        ("parameters", Value::Table(through.quality.parameters())),
    ]);
    table.insert("bridge".to_owned(), texts(&LinkNode::PORTS));
    table.insert("port".to_owned(), Value::Array(ports.to_vec()));
    table.insert("session".to_owned(), Value::Array(vec![Value::Table(session)]));
    table.insert("service".to_owned(), Value::Array(vec![Value::Table(service)]));
}

/// Waits until the service of a link's node runs; packets pass unchanged until then.
///
/// # Errors
/// The service fails, or does not run within [`START_TIME_MAX`].
pub fn wait_for_service(name: &Name) -> Result<(), Failure> {
    let client = Client::of(name);
    let end = Instant::now() + START_TIME_MAX;
    loop {
        let failed = match client.service(SERVICE) {
            Ok(service) if service.state == "running" && !service.rules.is_empty() => return Ok(()),
            Ok(service) if service.state != "failed" => None,
            Ok(service) => Some(service.reason.unwrap_or_default()),
            Err(_) => None,
        };
        let message = match failed {
            Some(reason) => format!("the service of the link at {name} failed: {reason}"),
            None if Instant::now() < end => {
                std::thread::sleep(ASK_INTERVAL);
                continue;
            }
            None => format!(
                "the service of the link at {name} did not run within {} s",
                START_TIME_MAX.as_secs()
            ),
        };
        return Err(Failure::failed(message));
    }
}

/// Returns one line for people about each link that delays, loses or reorders packets.
pub fn text(plan: &Plan) -> String {
    let mut lines = String::new();
    for link in &plan.links {
        let Some(through) = &link.through else { continue };
        let [one, other] = &link.ends;
        let quality = through.quality.text();
        lines += &format!("{} to {}, through {}: {quality}\n", one.node, other.node, through.node);
    }
    lines
}

/// Returns the link that a node is placed in, with its quality; `None` for a router's node.
pub fn through<'plan>(plan: &'plan Plan, node: &Name) -> Option<&'plan LinkNode> {
    let kind = plan.node(node.as_str())?.kind;
    let all = plan.links.iter().filter_map(|link| link.through.as_ref());
    all.filter(|_| kind == NodeKind::Link).find(|through| through.node == *node)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAB: &str = "name = \"l\"\nhost = [{ name = \"a\" }, { name = \"b\" }]\n[[link]]\n\
                       ends = [\"a\", \"b\"]\ndelay = \"10ms/20ms\"\nrate = \"10Mbit\"\nseed = 3\n";

    #[test]
    fn a_link_becomes_a_node_file_with_its_service() {
        let plan = topology::Lab::parse(LAB, "test").unwrap();
        let name = Name::new("link-1").unwrap();
        let through = through(&plan, &name).unwrap();
        let mut table = Table::new();
        table.insert("name".to_owned(), "l-link-1".into());
        add_to(&mut table, through, Path::new("/nonexistent/flakeway.wasm"));
        let node = daemon::NodeFile::parse(&table.to_string(), "test").unwrap();
        assert_eq!(node.ports.len(), 4);
        let service = &table["service"][0];
        assert_eq!(service["parameters"]["delay"].as_str(), Some("10ms/20ms"));
        assert_eq!(service["parameters"]["seed"].as_integer(), Some(3));
        assert_eq!(text(&plan), "a to b, through link-1: delay 10ms/20ms, rate 10Mbit\n");
    }

    #[test]
    fn a_lab_whose_links_need_a_module_that_is_not_there_is_refused_before_it_is_made() {
        let plan = topology::Lab::parse(LAB, "test").unwrap();
        let failure = module_for(&plan, Some(Path::new("/nonexistent/f.wasm"))).unwrap_err();
        assert_eq!(failure.code, ErrorCode::NotFound);
        assert!(failure.message.contains("from a to b needs a service: /nonexistent/f.wasm"));
        let plain = LAB.replace("delay = \"10ms/20ms\"\n", "").replace("seed = 3\n", "");
        let plain = topology::Lab::parse(&plain, "test").unwrap();
        assert!(module_for(&plain, None).unwrap().is_none());
    }
}
