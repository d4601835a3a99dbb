//! Subjects of the benchmarks: nodes that this program starts, services that it deploys on them,
//! and its engine without a node.

mod handshakes;
mod isolation;
mod scale;
mod streams;

use super::deploy::upload;
use super::key::random;
use super::lab::wait_for;
use super::read_module;
use super::run::{Lanes, parameters};
use crate::failure::Failure;
use crate::project;
use crate::samples;
use abi::Level;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use api::{Client, DeployRequest, RuleRequest, RulesRequest};
use association::Protection;
use association_client::{Caller, Settings};
use bench::{
    Appends, Associated, CellUse, Isolated, Loaded, Module, Party, Plan, Populated, Processes,
    Repository, Service, Subject, Touched, Vouched,
};
use daemon::ledger::files::Files;
use ledger::{Account, Amounts, Field, LedgerId, MeterId, Reading};
use namespaces::netns::{self, NetNs};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use trust::{Extent, Grant, Operation, SecretKey, Seed, Token, UnixTime};
use units::Name;

/// Time within which a node has to end after it was asked to.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);
/// Interval at which a node is polled for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Name of the measured service on the node.
const SERVICE: &str = "measured";
/// Module that drops every packet: the shortest one.
const RECEPTION: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"reception\"\nversion = \"0.1.0\"\nwindow = 64\n")
    (memory (export "memory") 1 1)
    (func (export "on_packet") (result i32) (i32.const 1)))"#;

/// Module that passes every packet: the shortest one.
const PASS: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"pass\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"nic\", \"kernel\", \"user\"]\nmemory_pages_max = 1\n")
    (memory (export "memory") 1 1)
    (func (export "on_packet") (result i32) (i32.const 0)))"#;
/// Module that passes every packet after 4,500 steps of FNV-1a, each dependent on the one before: 6
/// to 8 µs, and nearly all of the 65,536 units of fuel that a packet may use below user level.
const WORK: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"work\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"nic\", \"kernel\", \"user\"]\nmemory_pages_max = 1\n")
    (memory (export "memory") 1 1)
    (func (export "on_packet") (result i32)
      (local $step i32) (local $hash i32)
      (local.set $hash (i32.load (i32.const 0x9000)))
      (loop $more
        (local.set $hash
          (i32.mul (i32.xor (local.get $hash) (local.get $step)) (i32.const 16777619)))
        (local.set $step (i32.add (local.get $step) (i32.const 1)))
        (br_if $more (i32.lt_u (local.get $step) (i32.const 4500))))
      (i32.store (i32.const 0x9000) (local.get $hash))
      (i32.const 0)))"#;

/// Module that passes every packet, and raises every second one when it runs below user level.
/// Packets that follow a raised packet to user level, until that is gone, pass there, too.
const RAISE_HALF: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"raise-half\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"nic\", \"kernel\", \"user\"]\nmemory_pages_max = 1\n")
    (memory (export "memory") 1 1)
    (func (export "on_packet") (result i32)
      (local $call i32)
      (if (i32.eqz (i32.load8_u (i32.const 0x8038))) (then (return (i32.const 0))))
      (local.set $call (i32.xor (i32.load (i32.const 0x9000)) (i32.const 1)))
      (i32.store (i32.const 0x9000) (local.get $call))
      (select (i32.const 4) (i32.const 0) (local.get $call))))"#;

/// Address of a called node's associations.
const CALLED_AT: &str = "10.200.0.2:7443";
/// Secret key of the caller; that of an administrator is all zeros.
const CALLER: [u8; 32] = [3; 32];
/// Time within which a handshake has to finish.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

fn key(seed: [u8; 32]) -> SecretKey {
    SecretKey::from_seed(&Seed::from(seed))
}

/// Returns the lines of a node file that let packets call modules.
fn called() -> String {
    format!("anyone = [\"name:reception\"]\n[associations]\nlisten = [\"{CALLED_AT}\"]\n")
}

/// Running node.
struct Node {
    child: Child,
    /// Port by which packets enter.
    port: String,
    client: Client,
}

/// Nodes of a run; they end when this is dropped.
pub struct Nodes {
    /// Folder of the sample services' projects, if the user named one.
    services: Option<PathBuf>,
    folder: TempDir,
    running: BTreeMap<String, Node>,
    /// Key of the administrator that nodes trust which serve others of the run.
    root: SecretKey,
    touch: BTreeMap<u32, Lanes>,
    /// Load on a node's API by hostile principals, while it runs.
    hostile_load: Option<isolation::HostileLoad>,
}

impl Nodes {
    /// Returns an empty set. `services` is the folder of the sample services' projects, if the user
    /// named one.
    pub fn new(services: Option<&Path>) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()
            .map_err(|error| Failure::io("making a folder for the run", &error))?;
        let (services, root) = (services.map(Path::to_owned), SecretKey::from_seed(&random()?));
        Ok(Self {
            services,
            folder,
            running: BTreeMap::new(),
            root,
            touch: BTreeMap::new(),
            hostile_load: None,
        })
    }

    /// Returns the module of a sample service; builds it if it is not built yet.
    fn module(&self, name: &str) -> Result<PathBuf> {
        let usual = Path::new("services").join(name);
        let project = match &self.services {
            Some(services) => services.join(name),
            None => match samples::module(name) {
                Ok(module) => return Ok(module),
                // In the source tree it can be built.
                Err(_) if usual.join("Cargo.toml").exists() => usual,
                Err(failure) => return Err(anyhow!("{}", failure.message)),
            },
        };
        let module = project.join(format!("{name}.wasm"));
        if module.exists() {
            return Ok(module);
        }
        ensure!(
            project.join("Cargo.toml").exists(),
            "there is no service '{name}' at {}; --services names the folder of their projects",
            project.display()
        );
        let built = project::build(&project, &mut |_| {})
            .with_context(|| format!("building the service '{name}'"))?;
        Ok(built.module)
    }

    fn spawn(&self, plan: &Plan) -> Result<(Child, PathBuf)> {
        let rates = [None, plan.rate];
        let port = |(device, rate): (&String, Option<u64>)| {
            let rate = rate.map_or_else(String::new, |rate| format!("rate = \"{rate}Mbit/s\"\n"));
            let mode = if plan.at_tc { "mode = \"tc\"\n" } else { "" };
            format!("[[port]]\nname = \"{device}\"\ndevice = \"{device}\"\n{mode}{rate}")
        };
        let text = format!(
            "name = \"{}\"\nstore = \"{}\"\nstate = \"{}\"\nguest_core = {}\n{}{}[trust]\nunsigned = \"accept\"\nadministrators = [\"{}\"]\n{}{}",
            plan.name,
            self.folder.path().join(format!("{}.store", plan.name)).display(),
            self.folder.path().join(format!("{}.state", plan.name)).display(),
            plan.cell_cpu,
            plan.ledger_every.map_or_else(String::new, |every| format!("ledger_every = {every}\n")),
            plan.ports.iter().zip(rates).map(port).collect::<String>(),
            self.root.public(),
            if plan.is_called { called() } else { String::new() },
            self.neighbours(plan)?,
        );
        let config = self.folder.path().join(format!("{}.toml", plan.name));
        std::fs::write(&config, text).context("writing the node file")?;
        let log = self.folder.path().join(format!("{}.log", plan.name));
        let file = File::create(&log).context("making the node's log")?;
        let namespace = NetNs::open(&plan.namespace)?;
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.arg("node").arg("--config").arg(&config);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        netns::command_in(&namespace, &mut command)?;
        Ok((command.spawn().context("starting the node")?, log))
    }

    /// Returns the lines of a node file about other nodes of the run; `[trust]` comes before them.
    fn neighbours(&self, plan: &Plan) -> Result<String> {
        let mut text = String::new();
        if let Some(address) = plan.serves {
            text += &format!("[api]\nlisten = \"{address}\"\n");
        }
        if let Some(Repository { node, address }) = &plan.repository {
            let key = self.node(node)?.client.node()?.node_key;
            let grant = Grant { operations: Extent::only([Operation::Read]), ..Grant::all() };
            let seed = random().map_err(|failure| anyhow!(failure.message))?;
            let token = Token::mint(&self.root, self.root.public(), &grant, &seed)?.held()?;
            let file = self.folder.path().join(format!("{}.token", plan.name));
            std::fs::write(&file, token.to_string()).context("writing a token")?;
            let file = file.display();
            text += &format!(
                "[[repository]]\nnode = \"{address}\"\nkey = \"{key}\"\ntoken = \"{file}\"\n"
            );
        }
        Ok(text)
    }

    fn node(&self, name: &str) -> Result<&Node> {
        self.running.get(name).with_context(|| format!("there is no node '{name}'"))
    }

    fn serve(&self, client: &Client, service: Service, plan: &Plan) -> Result<()> {
        let made = |text| wat::parse_str(text).context("making a module of the benchmarks' own");
        let module = match service {
            Service::Monitor => self.upload(client, "monitor")?,
            Service::Nat => self.upload(client, "nat")?,
            Service::Touch { .. } => self.upload(client, "touch")?,
            Service::Compress => self.upload(client, "compress")?,
            Service::Reflector => self.upload(client, "reflector")?,
            Service::Transcode => self.upload(client, "transcode")?,
            Service::Reception => client.store_module(made(RECEPTION)?)?.digest,
            Service::Pass => client.store_module(made(PASS)?)?.digest,
            Service::Work => client.store_module(made(WORK)?)?.digest,
            Service::RaiseHalf => client.store_module(made(RAISE_HALF)?)?.digest,
            Service::Connections => client.store_module(made(streams::SEES_NOTHING)?)?.digest,
            Service::PassThrough | Service::PassThroughKeepingServers => {
                client.store_module(made(streams::PASS_THROUGH)?)?.digest
            }
        };
        let mut parameters = streams::parameters(service);
        if let Service::Touch { passes } = service {
            parameters.insert("passes".to_owned(), passes.to_string());
        }
        if service == Service::Nat {
            let given = [("address", "10.200.1.1"), ("inside", "10.200.0.0/24"), ("seed", "1")];
            parameters.extend(given.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        let level = (!streams::is_of_streams(service)).then(|| "user".to_owned());
        client.deploy(&DeployRequest {
            name: Some(SERVICE.to_owned()),
            module,
            parameters,
            rules: vec![match &plan.rule {
                Some(rule) => format!("in {} {rule}", plan.ports[0]),
                None => format!("in {}", plan.ports[0]),
            }],
            level,
            ..DeployRequest::default()
        })?;
        Ok(())
    }

    fn upload(&self, client: &Client, name: &str) -> Result<String> {
        upload(client, &self.module(name)?).map_err(|failure| anyhow!(failure.message))
    }

    fn lanes_of_touch(&mut self, passes: u32) -> Result<&mut Lanes> {
        if !self.touch.contains_key(&passes) {
            let lanes = self.start_touch(passes).map_err(|failure| anyhow!(failure.message))?;
            self.touch.insert(passes, lanes);
        }
        self.touch.get_mut(&passes).context("it was put there above")
    }

    fn start_touch(&self, passes: u32) -> Result<Lanes, Failure> {
        let (bytes, checked) = read_module(&self.module("touch")?)?;
        let given = BTreeMap::from([("passes".to_owned(), passes.to_string())]);
        let given = parameters(&checked, given)?;
        Lanes::start(&bytes, &checked, given, BTreeMap::new(), abi::Level::User)
    }
}

impl Subject for Nodes {
    fn start(&mut self, plan: &Plan, rules: u32) -> Result<()> {
        let name = Name::new(plan.name.as_str())?;
        let (child, log) = self.spawn(plan)?;
        let child = wait_for(&name, child, &log).map_err(|failure| anyhow!(failure.message))?;
        let (port, client) = (plan.ports[0].clone(), Client::of(&name));
        self.running.insert(plan.name.clone(), Node { child, port, client });
        let client = &self.node(&plan.name)?.client;
        if rules > 0 {
            client.add_rules(&RulesRequest { rules: (0..rules).map(rule).collect() })?;
        }
        if let Some(service) = plan.service {
            self.serve(client, service, plan)?;
        }
        Ok(())
    }

    fn handled(&mut self, name: &str) -> Result<u64> {
        let stats = self.node(name)?.client.stats()?;
        Ok(stats.services.get(SERVICE).map_or(0, |service| service.packets))
    }

    fn associate(&mut self, name: &str, namespace: &str) -> Result<Associated> {
        let client = &self.node(name)?.client;
        let reception = wat::parse_str(RECEPTION).context("making a module to call")?;
        let digest =
            *client.store_module(reception)?.digest.parse::<module_store::Digest>()?.bytes();
        let seed = Seed::from([4; 32]);
        let minted = Token::mint(&self.root, key(CALLER).public(), &Grant::all(), &seed)?;
        let settings = Settings {
            key: key(CALLER),
            token: minted.held()?.to_string(),
            node: None,
            within: HANDSHAKE_TIME_MAX,
        };
        let (space, at) = (NetNs::open(namespace)?, CALLED_AT.parse()?);
        let mut caller = netns::in_namespace(&space, || Caller::connect(at, settings))??;
        let mut stranger = netns::in_namespace(&space, || Caller::anyone(at))??;
        // The services start with their first packets.
        for one in [&mut caller, &mut stranger] {
            one.call(&digest, &[0], Protection::Encrypted)?;
        }
        let handshake = caller.handshake_took();
        let calls = move |length: usize, vouched| {
            let by = match vouched {
                Vouched::Yes => &mut caller,
                Vouched::No => &mut stranger,
            };
            Ok(by.sealed(&digest, &vec![0xa5; length], Protection::Encrypted)?)
        };
        Ok(Associated { handshake, calls: Box::new(calls) })
    }

    fn cell_use(&mut self, name: &str) -> Result<CellUse> {
        let stats = self.node(name)?.client.stats()?;
        let packets = stats.services.values().map(|service| service.packets).sum();
        Ok(CellUse { packets, cpu_ns: stats.cell.cpu_ns })
    }

    fn move_to(&mut self, name: &str, level: Level) -> Result<()> {
        let moved = self.node(name)?.client.move_service(SERVICE, level.name())?;
        ensure!(moved.level == level.name(), "it is at {} instead of {level}", moved.level);
        Ok(())
    }

    fn deploy(&mut self, name: &str, module: Module<'_>, level: Level) -> Result<Loaded> {
        let begun = Instant::now();
        let Node { port, client, .. } = self.node(name)?;
        let module = match module {
            Module::File(path) => {
                upload(client, path).map_err(|failure| anyhow!(failure.message))?
            }
            Module::Stored(digest) => digest.to_owned(),
        };
        let stored = begun.elapsed();
        let deployed = client.deploy(&DeployRequest {
            name: Some(SERVICE.to_owned()),
            module,
            rules: vec![format!("in {port}")],
            level: Some(level.name().to_owned()),
            ..DeployRequest::default()
        })?;
        let answered = begun.elapsed();
        let service = deployed.service;
        ensure!(
            service.level == level.name(),
            "it is at {} instead of {level}: {}",
            service.level,
            service.level_reason
        );
        Ok(Loaded { digest: service.digest, stored, answered })
    }

    fn store(&mut self, name: &str, module: &Path) -> Result<String> {
        let wasm = std::fs::read(module).context("reading a module")?;
        Ok(self.node(name)?.client.store_module(wasm)?.digest)
    }

    fn isolate(&mut self, name: &str, isolated: &Isolated<'_>) -> Result<()> {
        let Node { port, client, .. } = self.node(name)?;
        self.hostile_load = isolation::isolate(&Name::new(name)?, client, port, isolated)?;
        Ok(())
    }

    fn kept(&mut self, name: &str, session: &str) -> Result<Vec<(Option<f64>, u64)>> {
        isolation::kept(&self.node(name)?.client, session)
    }

    fn cpu(&mut self, name: &str) -> Result<BTreeMap<String, Duration>> {
        let sessions = self.node(name)?.client.sessions()?.sessions;
        let used = |nanos: Option<u64>| Duration::from_nanos(nanos.unwrap_or_default());
        Ok(sessions.into_iter().map(|it| (it.name, used(it.used.total.cpu_ns))).collect())
    }

    fn rejoin(&mut self, name: &str, hostile: u16) -> Result<()> {
        if let Some(mut hostile_load) = self.hostile_load.take() {
            hostile_load.end()?;
        }
        isolation::rejoin(&self.node(name)?.client, hostile)
    }

    fn admit(&mut self, name: &str, party: &Party<'_>) -> Result<()> {
        let Node { port, client, .. } = self.node(name)?;
        isolation::admit(client, port, party)
    }

    fn send_message(&mut self, name: &str, service: &str, message: &[u8]) -> Result<()> {
        let answers = self.node(name)?.client.message(service, message)?.answers;
        ensure!(answers.iter().all(|it| *it == Some(0)), "'{service}' does not take a message");
        Ok(())
    }

    fn counters(&mut self, name: &str, service: &str) -> Result<BTreeMap<String, u64>> {
        Ok(self.node(name)?.client.service(service)?.stats.counters)
    }

    fn promise(&mut self, name: &str, session: &str, send: (&str, &str)) -> Result<()> {
        isolation::promise(&self.node(name)?.client, session, send)
    }

    fn evict(&mut self, name: &str, session: &str) -> Result<()> {
        self.node(name)?.client.remove_session(session, true)?;
        Ok(())
    }

    fn populate(&mut self, name: &str, wanted: &Populated) -> Result<Duration> {
        let Node { port, client, .. } = self.node(name)?;
        scale::populate(client, port, wanted)
    }

    fn one_more(&mut self, name: &str) -> Result<Duration> {
        let Node { port, client, .. } = self.node(name)?;
        scale::one_more(client, port)
    }

    fn sessions(&mut self, name: &str) -> Result<usize> {
        Ok(self.node(name)?.client.sessions()?.sessions.len())
    }

    fn processes(&mut self, name: &str) -> Result<Processes> {
        scale::processes(self.node(name)?.child.id())
    }

    fn ledger(&mut self, folder: &Path, records: u16) -> Result<Appends> {
        let key = SecretKey::from_seed(&Seed::from([2; 32]));
        let (principal, session) = (key.public(), Name::new("bench")?);
        let mut files = Files::open(folder, Arc::new(key), LedgerId([1; 16]))?;
        let account = Account { principal, session };
        let mut count = 0;
        Ok(Box::new(move || {
            count += 1;
            let reading = |meter: u16| {
                let meter = MeterId(u128::from(meter).to_le_bytes());
                let (account, reading) =
                    (account.clone(), Amounts::NONE.with(Field::PacketsIn, count));
                Reading { account, service: None, meter, reading, is_last: false }
            };
            let readings: Vec<Reading> = (0..records).map(reading).collect();
            Ok(files.append(UnixTime(count), &readings)?.bytes)
        }))
    }

    fn handshakes(&mut self, count: u32) -> Result<[Duration; 2]> {
        handshakes::handshakes(count)
    }

    fn sealing(&mut self, length: usize, count: u32) -> Result<[Duration; 2]> {
        handshakes::sealing(length, count)
    }

    fn remove(&mut self, name: &str) -> Result<()> {
        // The node answers once the cell has stopped the service.
        self.node(name)?.client.remove(SERVICE, true)?;
        Ok(())
    }

    fn stop(&mut self, name: &str) -> Result<()> {
        let Some(Node { child, .. }) = self.running.remove(name) else {
            bail!("there is no node '{name}'")
        };
        end(child).with_context(|| format!("stopping node '{name}'"))
    }

    fn touch(&mut self, packet: &[u8], passes: u32, repeat: u32) -> Result<Touched> {
        let lanes = self.lanes_of_touch(passes)?;
        let checksum = |lanes: &Lanes| lanes.counters().get("checksum").copied().unwrap_or(0);
        let before = checksum(lanes);
        let begun = Instant::now();
        let done = lanes.repeat(packet, repeat);
        let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        ensure!(done == repeat, "the module stopped at packet {done} of {repeat}");
        Ok(Touched { checksum: checksum(lanes).wrapping_sub(before), nanos })
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for Node { child, .. } in std::mem::take(&mut self.running).into_values() {
            // The run has failed already; `tam lab down --all` removes the remains.
            let _ = end(child);
        }
    }
}

/// Asks a node to end, and kills it after [`STOP_TIME_MAX`].
fn end(mut child: Child) -> Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // A child that has ended was not waited for yet, so its number is not reused.
    kill_process(pid.context("its process has no number")?, Signal::TERM)?;
    let end = Instant::now() + STOP_TIME_MAX;
    while child.try_wait()?.is_none() {
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            bail!("it did not end within {} s and was killed", STOP_TIME_MAX.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Returns a rule that the benchmarks' traffic does not match. There are four kinds, as a router
/// has, so that the classifier has more than one mask to try.
fn rule(number: u32) -> RuleRequest {
    let [high, low] = [number / 256 % 256, number % 256];
    let port = 1024 + number % 60_000;
    let text = match number % 4 {
        0 => format!("proto udp dst 10.202.{high}.{low} dport {port}"),
        1 => format!("dst 10.{}.{low}.0/24", 203 + number / 256 % 40),
        2 => format!(
            "proto tcp src 10.250.{high}.{low} sport {port} dst 10.251.{high}.{low} dport 443"
        ),
        _ => format!("ip 6 dst fd00:0:{high:x}:{low:x}::/64"),
    };
    RuleRequest::new(text, "drop")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_rules_parse_and_are_distinct() {
        let texts: std::collections::BTreeSet<String> = (0..1000)
            .map(|number| rule(number).r#match)
            .inspect(|text| {
                let parsed: Result<node::rule::Match, _> = text.parse();
                assert!(parsed.is_ok(), "{text}: {parsed:?}");
            })
            .collect();
        assert_eq!(texts.len(), 1000);
    }

    #[test]
    fn the_modules_of_our_own_keep_to_the_abi() {
        let modules =
            [(RECEPTION, "reception"), (PASS, "pass"), (WORK, "work"), (RAISE_HALF, "raise-half")];
        for (text, name) in modules {
            let wasm = wat::parse_str(text).unwrap();
            assert_eq!(abi::Unverified(&wasm).check().unwrap().manifest.name.as_str(), name);
        }
    }
}
