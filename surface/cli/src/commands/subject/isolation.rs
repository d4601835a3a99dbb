//! A victim's session on a node, and hostile ones beside it.

use anyhow::{Context as _, Result};
use api::{Client, DeployRequest, SessionChange, SessionRequest};
use bench::{FLOWS, Party, SOURCE_PORT_FIRST, Work};

const VICTIM: &str = "victim";
/// What the victim is promised.
const PROMISE: &str = "1ms/4ms";
/// What waits for a victim whose work never ends, beyond which packets are dropped: enough for
/// several of its periods.
const QUEUE: &str = "2MiB";

/// Every packet passes behind 100,000 steps of FNV-1a: a tenth of a millisecond and more.
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
/// No packet ever leaves it.
const ENDLESS: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"endless\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"user\"]\nmemory_pages_max = 1\n")
    (memory (export "memory") 1 1)
    (func (export "on_packet") (result i32) (loop (br 0)) (i32.const 0)))"#;

pub(super) fn admit(client: &Client, port: &str, party: &Party<'_>) -> Result<()> {
    let Party { name, cpu, queue, send, flow, work } = *party;
    client.create_session(&SessionRequest {
        name: name.to_owned(),
        cpu: cpu.into_iter().map(str::to_owned).collect(),
        queue: queue.map(|bytes| format!("{bytes}B")),
        send: send.into_iter().map(|(port, share)| (port.to_owned(), share.to_owned())).collect(),
        ..SessionRequest::default()
    })?;
    let module = store(client, text_of(work))?;
    deploy(client, name, module, format!("in {port} proto udp sport {flow}"))
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
    }
}

fn store(client: &Client, text: &str) -> Result<String> {
    let module = wat::parse_str(text).context("making a module of the benchmark's own")?;
    Ok(client.store_module(module)?.digest)
}

pub(super) fn isolate(client: &Client, port: &str, victim: Work, hostile: u16) -> Result<()> {
    let session = |name: String| SessionRequest { name, ..SessionRequest::default() };
    client.create_session(&SessionRequest {
        cpu: vec![PROMISE.to_owned()],
        queue: Some(QUEUE.to_owned()),
        ..session(VICTIM.to_owned())
    })?;
    let module = store(client, text_of(victim))?;
    let (first, last) = (SOURCE_PORT_FIRST + hostile, SOURCE_PORT_FIRST + FLOWS - 1);
    deploy(client, VICTIM, module, format!("in {port} proto udp sport {first}-{last}"))?;
    let endless = store(client, ENDLESS)?;
    for number in 0..hostile {
        let name = hostile_name(number);
        client.create_session(&session(name.clone()))?;
        let flow = SOURCE_PORT_FIRST + number;
        deploy(client, &name, endless.clone(), format!("in {port} proto udp sport {flow}"))?;
    }
    Ok(())
}

/// A service of a session of the same name, for packets that match.
fn deploy(client: &Client, name: &str, module: String, rule: String) -> Result<()> {
    client.deploy(&DeployRequest {
        name: Some(name.to_owned()),
        module,
        session: Some(name.to_owned()),
        rules: vec![rule],
        level: Some("user".to_owned()),
        ..DeployRequest::default()
    })?;
    Ok(())
}

fn hostile_name(number: u16) -> String {
    format!("hostile-{number}")
}

pub(super) fn kept(client: &Client) -> Result<Vec<(Option<f64>, u64)>> {
    let kept = client.session(VICTIM)?.used.kept;
    Ok(kept.into_iter().map(|some| (some.points, some.periods)).collect())
}

pub(super) fn rejoin(client: &Client, hostile: u16) -> Result<()> {
    for number in 0..hostile {
        client.remove_session(&hostile_name(number), true)?;
    }
    client.remove_session(VICTIM, true)?;
    Ok(())
}
