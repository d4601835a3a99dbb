//! Victim's session on a node with hostile sessions beside it.

use abi::Level;
use anyhow::{Context as _, Result, anyhow};
use api::{Client, DeployRequest, RuleRequest, RulesRequest, SessionChange, SessionRequest};
use bench::{FLOWS, Hostile, Isolated, Party, SOURCE_PORT_FIRST, VICTIM, Work};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use units::Name;

/// Virtual processor reserved for the victim.
const PROMISE: &str = "1ms/4ms";
/// Queue of a victim whose work never ends, enough for several of its periods; packets beyond it
/// are dropped.
const QUEUE: &str = "2MiB";

/// Module that passes every packet after 100,000 steps of FNV-1a: a tenth of a millisecond and
/// more.
const BOUND: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"bound\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"user\"]\nmemory_pages_max = 1\n")
    (memory (export "memory") 1 1)
    (func (export "on_packet") (result i32)
      (local $step i32) (local $hash i32)
      (loop $more
        (local.set $hash
          (i32.mul (i32.xor (local.get $hash) (local.get $step)) (i32.const 16777619)))
        (local.set $step (i32.add (local.get $step) (i32.const 1)))
        (br_if $more (i32.lt_u (local.get $step) (i32.const 100000))))
      (i32.store (i32.const 0x9000) (local.get $hash))
      (i32.const 0)))"#;
/// Module with a heap and its garbage collector.
const HEAP: &str = include_str!("heap.wat");
/// Module that drops every packet; each request to deploy it again counts as a new version.
const DROPS: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"drops\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"user\"]\nmemory_pages_max = 1\n")
    (memory (export "memory") 1 1)
    (func (export "on_packet") (result i32) (i32.const 1)))"#;
/// Module whose memory grows by 1 MiB with each packet, up to 16 MiB, and that writes to each page
/// of it.
const GROWS: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"grows\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"user\"]\nmemory_pages_max = 256\n")
    (memory (export "memory") 1 256)
    (func (export "on_packet") (result i32) (local $at i32)
      (drop (memory.grow (i32.const 16)))
      (local.set $at (i32.shl (memory.size) (i32.const 16)))
      (loop $more
        (local.set $at (i32.sub (local.get $at) (i32.const 4096)))
        (i32.store offset=8 (local.get $at) (i32.const 1))
        (br_if $more (i32.gt_u (local.get $at) (i32.const 0x10000))))
      (i32.const 1)))"#;
/// Match of a protocol that nobody sends.
const UNUSED: &str = "proto 254";
/// Time on packet cores reserved for the victim.
const PROMISE_BELOW: &str = "1ms/4ms";
/// Module that never returns from a packet.
const ENDLESS: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"endless\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"user\"]\nmemory_pages_max = 1\n")
    (memory (export "memory") 1 1)
    (func (export "on_packet") (result i32) (loop (br 0)) (i32.const 0)))"#;

pub(super) fn admit(client: &Client, port: &str, party: &Party<'_>) -> Result<()> {
    let Party { name, cpu, queue, send, flow, flows, work } = *party;
    client.create_session(&SessionRequest {
        name: name.to_owned(),
        cpu: cpu.into_iter().map(str::to_owned).collect(),
        queue: queue.map(|bytes| format!("{bytes}B")),
        send: send.into_iter().map(|(port, share)| (port.to_owned(), share.to_owned())).collect(),
        ..SessionRequest::default()
    })?;
    let module = store(client, text_of(work))?;
    let last = flow + flows - 1;
    deploy(client, name, module, format!("in {port} proto udp sport {flow}-{last}"))
}

pub(super) fn promise(client: &Client, session: &str, send: (&str, &str)) -> Result<()> {
    let (port, share) = send;
    let send = Some([(port.to_owned(), share.to_owned())].into());
    client.set_session(session, &SessionChange { send, ..SessionChange::default() })?;
    Ok(())
}

const fn text_of(work: Work) -> &'static str {
    match work {
        Work::Light => super::PASS,
        Work::Bound => BOUND,
        Work::Heap => HEAP,
    }
}

pub(super) fn store(client: &Client, text: &str) -> Result<String> {
    let module = wat::parse_str(text).context("making a module of the benchmark's own")?;
    Ok(client.store_module(module)?.digest)
}

/// Hostile principal that acts through the API.
#[derive(Debug)]
struct HostileClient {
    kind: Hostile,
    /// Name of its session and of its service.
    name: String,
    rule: String,
}

/// Threads of hostile requests to the API; they end when this is dropped.
#[derive(Debug)]
pub(super) struct HostileLoad {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl HostileLoad {
    /// Core of the daemon and the generator.
    const CPU: usize = 0;

    fn begin(client: Client, all: Vec<HostileClient>, module: String, port: String) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            sandbox::cores::pin_to(Self::CPU).context("binding to a core")?;
            let (mut turns, mut done, mut refused) = (all.iter().cycle(), 0, None);
            while !over.load(Ordering::Relaxed) {
                let Some(one) = turns.next() else { return Ok(()) };
                let acted = match one.kind {
                    Hostile::Rules => add_and_remove_rule(&client, &one.name, &port),
                    _ => replace(&client, one, &module),
                };
                // The node may refuse, as one version is watched before the next may come.
                match acted {
                    Ok(()) => done += 1,
                    Err(error) => refused = Some(error),
                }
            }
            match refused {
                Some(error) if done == 0 => Err(error),
                _ => Ok(()),
            }
        });
        Self { ended, thread: Some(thread) }
    }

    pub(super) fn end(&mut self) -> Result<()> {
        self.ended.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(|thread| thread.join());
        ended.unwrap_or(Ok(Ok(()))).map_err(|_| anyhow!("a hostile thread failed"))?
    }
}

impl Drop for HostileLoad {
    fn drop(&mut self) {
        // Reached only after an error, which is reported instead.
        let _ = self.end();
    }
}

/// Adds and removes a rule of the session.
fn add_and_remove_rule(client: &Client, name: &str, port: &str) -> Result<()> {
    let rule = RuleRequest::new(format!("in {port} {UNUSED} src 10.255.0.1"), "drop");
    let rule = RuleRequest { session: Some(name.to_owned()), ..rule };
    let added = client.add_rules(&RulesRequest { rules: vec![rule] })?;
    for rule in added.rules {
        client.remove_rule(rule)?;
    }
    Ok(())
}

/// Replaces the service by another version.
fn replace(client: &Client, one: &HostileClient, module: &str) -> Result<()> {
    client.deploy(&DeployRequest {
        name: Some(one.name.clone()),
        module: module.to_owned(),
        session: Some(one.name.clone()),
        rules: vec![one.rule.clone()],
        level: Some("user".to_owned()),
        discard_state: true,
        ..DeployRequest::default()
    })?;
    Ok(())
}

/// Starts the victim, the hostile sessions and their requests to the API.
pub(super) fn isolate(
    node: &Name,
    client: &Client,
    port: &str,
    isolated: &Isolated<'_>,
) -> Result<Option<HostileLoad>> {
    let Isolated { victim, level, hostile, kinds } = *isolated;
    let session = |name: String| SessionRequest { name, ..SessionRequest::default() };
    client.create_session(&SessionRequest {
        cpu: vec![PROMISE.to_owned()],
        queue: Some(QUEUE.to_owned()),
        below: (level == Level::Nic).then(|| PROMISE_BELOW.to_owned()),
        ..session(VICTIM.to_owned())
    })?;
    let module = store(client, text_of(victim))?;
    let (first, last) = (SOURCE_PORT_FIRST + hostile, SOURCE_PORT_FIRST + FLOWS - 1);
    deploy_at(client, VICTIM, module, format!("in {port} proto udp sport {first}-{last}"), level)?;
    let mut by_api = Vec::new();
    for (number, kind) in (0..hostile).zip(kinds.iter().copied().cycle()) {
        let name = hostile_name(number);
        client.create_session(&session(name.clone()))?;
        let module = store(client, hostile_text(kind))?;
        let rule = format!("in {port} proto udp sport {}", SOURCE_PORT_FIRST + number);
        let level = if kind == Hostile::Below { Level::Nic } else { Level::User };
        deploy_at(client, &name, module, rule.clone(), level)?;
        match kind {
            // As many objects as keep the collector busy for a millisecond.
            Hostile::Garbage => drop(client.message(&name, &100_000_u32.to_le_bytes())?),
            Hostile::Rules | Hostile::Reloads => {
                by_api.push(HostileClient { kind, name, rule });
            }
            _ => {}
        }
    }
    if by_api.is_empty() {
        return Ok(None);
    }
    let (module, client) = (store(client, DROPS)?, Client::of(node));
    Ok(Some(HostileLoad::begin(client, by_api, module, port.to_owned())))
}

const fn hostile_text(kind: Hostile) -> &'static str {
    match kind {
        Hostile::Endless => ENDLESS,
        Hostile::Memory => GROWS,
        Hostile::Garbage => HEAP,
        Hostile::Flood | Hostile::Rules | Hostile::Reloads => DROPS,
        Hostile::Below => super::WORK,
    }
}

/// Deploys a service in a session of the same name, for packets that match.
pub(super) fn deploy(client: &Client, name: &str, module: String, rule: String) -> Result<()> {
    deploy_at(client, name, module, rule, Level::User)
}

/// Deploys such a service at a level.
fn deploy_at(
    client: &Client,
    name: &str,
    module: String,
    rule: String,
    level: Level,
) -> Result<()> {
    client.deploy(&DeployRequest {
        name: Some(name.to_owned()),
        module,
        session: Some(name.to_owned()),
        rules: vec![rule],
        level: Some(level.name().to_owned()),
        ..DeployRequest::default()
    })?;
    Ok(())
}

fn hostile_name(number: u16) -> String {
    format!("hostile-{number}")
}

pub(super) fn kept(client: &Client, session: &str) -> Result<Vec<(Option<f64>, u64)>> {
    let kept = client.session(session)?.used.kept;
    Ok(kept.into_iter().map(|some| (some.points, some.periods)).collect())
}

pub(super) fn rejoin(client: &Client, hostile: u16) -> Result<()> {
    for number in 0..hostile {
        client.remove_session(&hostile_name(number), true)?;
    }
    client.remove_session(VICTIM, true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::run::Lanes;
    use std::collections::BTreeMap;

    /// Returns a UDP frame from this L4 port.
    fn frame(port: u16) -> Vec<u8> {
        let frame = wire::FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        frame.udp(port, 9).payload(&[0; 20]).build()
    }

    #[test]
    fn a_shared_heap_is_collected_during_the_packets_of_either_user() {
        let bytes = wat::parse_str(HEAP).unwrap();
        let checked = abi::Unverified(&bytes).check().unwrap();
        let start = || {
            let (given, ports) = (BTreeMap::new(), BTreeMap::new());
            Lanes::start(&bytes, &checked, given, ports, abi::Level::User).unwrap()
        };
        let looked = |lanes: &Lanes, who: &str| lanes.counters()[&format!("looked_{who}")];
        let mut lanes = start();
        // 4 objects each: collection begins after the packet that leaves fewer than 4,096 of
        // 16,384.
        assert_eq!(lanes.repeat(&frame(1025), 3_073), 3_073);
        assert_eq!(looked(&lanes, "b"), 0);
        assert_eq!(lanes.repeat(&frame(1024), 1), 1);
        assert_eq!((looked(&lanes, "a"), looked(&lanes, "b")), (256, 0));
        // Often enough that each object was garbage more than once.
        assert_eq!(lanes.repeat(&frame(1025), 100_000), 100_000);
        let each = looked(&lanes, "b") as f64 / 100_000.0;
        assert!((4.0..8.0).contains(&each), "{each} for each packet");
    }
}
