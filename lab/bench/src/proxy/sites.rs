//! Lines of the benchmark, with the contestants and their addresses.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use bpf::{Link, Object, XdpMode, objects};
use namespaces::netns::{self, NetNs};

use super::{Client, Contestant, LARGE, SMALL};
use crate::line::{self, Line, NODE_CPU};
use crate::streams::process::{HAPROXY, Process};
use crate::streams::{self, ORIGIN, PROXY, nginx, within};
use crate::{Plan, Service, Subject};

/// Setting of HAProxy's backends that connect to the origin with the client's address.
const AS_CLIENT: &str = "source 0.0.0.0 usesrc client";
/// Ruleset that marks packets for transparent sockets, whose route delivers them locally.
const TRANSPARENT: &str = "table ip transparent {\n chain prerouting {\n  \
    type filter hook prerouting priority mangle; policy accept;\n  \
    meta l4proto tcp socket transparent 1 meta mark set 1 accept\n }\n}\n";
/// Names of the nodes.
const PLAIN: &str = "bench-plain";
const FILTER: &str = "bench-filter";
const KEEPING: &str = "bench-keeping";
const PLAIN_AT_XDP: &str = "bench-plain-xdp";
const FILTER_AT_XDP: &str = "bench-filter-xdp";
/// Paths of the origin's files.
pub(super) const SMALL_PATH: &str = "/1k";
pub(super) const LARGE_PATH: &str = "/1m";
/// L4 ports of the proxies.
const HAPROXY_TCP: u16 = 8001;
const NGINX_TCP: u16 = 8002;
const HAPROXY_HTTP: u16 = 8003;
const NGINX_HTTP: u16 = 8004;
/// Most connections of HAProxy, far above those of a case: its default, derived from the limit of
/// descriptors, may be so high that it refuses to start.
const HAPROXY_CONNECTIONS: u32 = 4000;
/// Path of nginx's stream module.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Line with a serving origin.
struct Site {
    line: Line,
    _origin: Process,
}

/// Sites of all contestants.
pub(super) struct Sites {
    plain: Site,
    filter: Site,
    keeping: Site,
    plain_at_xdp: Site,
    filter_at_xdp: Site,
    others: Site,
    behind_xdp: Site,
    transparent: Site,
    haproxy: Process,
    nginx: Process,
    haproxy_behind_xdp: Process,
    haproxy_transparent: Process,
    /// Processes of each node: daemon and cell.
    nodes: [Vec<u32>; 5],
    _links: Vec<Link>,
}

/// Address that clients ask, and the processes that work for it.
pub(super) struct Endpoint<'a> {
    pub(super) client: &'a NetNs,
    pub(super) address: String,
    pub(super) processes: Vec<u32>,
}

impl Sites {
    pub(super) fn new(folder: &Path, subject: &mut dyn Subject) -> Result<Self> {
        let files = within(folder, "files")?;
        for (path, length) in [(SMALL_PATH, SMALL), (LARGE_PATH, LARGE)] {
            std::fs::write(files.join(&path[1..]), body(length)).context("writing a file")?;
        }
        let site = |name: &str| -> Result<Site> {
            let line = Line::new(&format!("proxy-{name}"))?;
            line.carry_tcp()?;
            let origin = nginx::origin(&line, &within(folder, name)?, &files)?;
            Ok(Site { line, _origin: origin })
        };
        let (others, behind_xdp) = (site("others")?, site("xdp")?);
        let links = netns::in_namespace(&behind_xdp.line.node, || passes(&behind_xdp.line))??;
        let (haproxy, nginx) = (haproxy(&others, folder)?, nginx_proxy(&others, folder)?);
        let haproxy_behind_xdp = haproxy_in(&behind_xdp, folder, "haproxy-xdp", "")?;
        let transparent = site("transparent")?;
        take_others_addresses(&transparent.line, folder)?;
        let haproxy_transparent =
            haproxy_in(&transparent, folder, "haproxy-transparent", AS_CLIENT)?;
        let (plain, filter, keeping) = (site("plain")?, site("filter")?, site("keeping")?);
        let (plain_at_xdp, filter_at_xdp) = (site("plain-xdp")?, site("filter-xdp")?);
        for (site, name, service) in [
            (&plain, PLAIN, Service::Connections),
            (&filter, FILTER, Service::PassThrough),
            (&keeping, KEEPING, Service::PassThroughKeepingServers),
            (&plain_at_xdp, PLAIN_AT_XDP, Service::Connections),
            (&filter_at_xdp, FILTER_AT_XDP, Service::PassThrough),
        ] {
            // Ports for streams alone, as for a dedicated proxy, but for the last two.
            let at_tc = ![PLAIN_AT_XDP, FILTER_AT_XDP].contains(&name);
            subject.start(&Plan { at_tc, ..streams::plan(&site.line, name, service) }, 0)?;
        }
        let mut node = |name| streams::node(subject, name);
        let nodes = [
            node(PLAIN)?,
            node(FILTER)?,
            node(KEEPING)?,
            node(PLAIN_AT_XDP)?,
            node(FILTER_AT_XDP)?,
        ];
        Ok(Self {
            plain,
            filter,
            keeping,
            plain_at_xdp,
            filter_at_xdp,
            others,
            behind_xdp,
            transparent,
            haproxy,
            nginx,
            haproxy_behind_xdp,
            haproxy_transparent,
            nodes,
            _links: links,
        })
    }

    /// Stops the nodes.
    pub(super) fn stop(&self, subject: &mut dyn Subject) -> Result<()> {
        let nodes = [PLAIN, FILTER, KEEPING, PLAIN_AT_XDP, FILTER_AT_XDP];
        nodes.into_iter().try_for_each(|name| subject.stop(name))
    }

    pub(super) fn place(&self, contestant: Contestant) -> Endpoint<'_> {
        let proxy = |port: u16| format!("{PROXY}:{port}");
        let behind = || self.haproxy_behind_xdp.pids();
        let transparent = || self.haproxy_transparent.pids();
        let (site, address, processes) = match contestant {
            Contestant::Plain => (&self.plain, ORIGIN.to_owned(), self.nodes[0].clone()),
            Contestant::Filter => (&self.filter, ORIGIN.to_owned(), self.nodes[1].clone()),
            Contestant::Keeping => (&self.keeping, ORIGIN.to_owned(), self.nodes[2].clone()),
            Contestant::PlainAtXdp => {
                (&self.plain_at_xdp, ORIGIN.to_owned(), self.nodes[3].clone())
            }
            Contestant::FilterAtXdp => {
                (&self.filter_at_xdp, ORIGIN.to_owned(), self.nodes[4].clone())
            }
            Contestant::HaproxyTcp => (&self.others, proxy(HAPROXY_TCP), self.haproxy.pids()),
            Contestant::HaproxyHttp => (&self.others, proxy(HAPROXY_HTTP), self.haproxy.pids()),
            Contestant::NginxTcp => (&self.others, proxy(NGINX_TCP), self.nginx.pids()),
            Contestant::NginxHttp => (&self.others, proxy(NGINX_HTTP), self.nginx.pids()),
            Contestant::TcpBehindXdp => (&self.behind_xdp, proxy(HAPROXY_TCP), behind()),
            Contestant::HttpBehindXdp => (&self.behind_xdp, proxy(HAPROXY_HTTP), behind()),
            Contestant::TcpTransparent => (&self.transparent, proxy(HAPROXY_TCP), transparent()),
            Contestant::HttpTransparent => (&self.transparent, proxy(HAPROXY_HTTP), transparent()),
        };
        Endpoint { client: &site.line.source, address, processes }
    }

    /// Checks that every byte arrives through this contestant.
    pub(super) fn check(&self, contestant: Contestant) -> Result<()> {
        let place = self.place(contestant);
        let mut client = Client::connect(place.client, place.address.parse()?)
            .with_context(|| contestant.name().to_owned())?;
        for (path, length) in [(SMALL_PATH, SMALL), (LARGE_PATH, LARGE)] {
            let answer = client.ask(path, false).with_context(|| contestant.name().to_owned())?;
            ensure!(
                answer.body == body(length),
                "{}: {path} came as other bytes",
                contestant.name()
            );
        }
        Ok(())
    }
}

/// Returns incompressible bytes, of a linear congruential generator.
fn body(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(next).collect()
}

/// Attaches a program to both ports that passes everything, as a node has one there: a veth copies
/// each frame for it, a network card would not.
fn passes(line: &Line) -> Result<Vec<Link>> {
    let object = Object::open(objects::bench::SINK, "sink")?.load()?;
    let program = object.program("pass")?;
    let on = |port| Ok(program.attach_xdp(Line::ifindex(&line.node, port)?, XdpMode::Native)?);
    [line::PORT_IN, line::PORT_OUT].into_iter().map(on).collect()
}

/// Makes the kernel deliver packets to sockets with other hosts' addresses, as HAProxy's manual
/// describes.
fn take_others_addresses(line: &Line, folder: &Path) -> Result<()> {
    let file = folder.join("transparent.nft");
    std::fs::write(&file, TRANSPARENT).context("writing rules for nft")?;
    let file = file.display().to_string();
    let commands: [&[&str]; 3] = [
        &["nft", "-f", &file],
        &["ip", "rule", "add", "fwmark", "1", "lookup", "100"],
        &["ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", "100"],
    ];
    for argv in commands {
        let mut command = Command::new(argv[0]);
        command.args(&argv[1..]);
        netns::command_in(&line.node, &mut command)?;
        let output = command.output().with_context(|| format!("running '{}'", argv[0]))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", argv.join(" "), said.trim());
    }
    Ok(())
}

fn haproxy(site: &Site, folder: &Path) -> Result<Process> {
    haproxy_in(site, folder, "haproxy", "")
}

/// Starts HAProxy; `source` is added to both backends.
fn haproxy_in(site: &Site, folder: &Path, name: &str, source: &str) -> Result<Process> {
    let folder = within(folder, name)?;
    let file = folder.join("haproxy.cfg");
    let text = format!(
        "global\n  nbthread 1\n  maxconn {HAPROXY_CONNECTIONS}\n\
         defaults\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n\
         frontend t\n  mode tcp\n  option splice-auto\n  bind {PROXY}:{HAPROXY_TCP}\n  \
         default_backend tb\n\
         backend tb\n  mode tcp\n  option splice-auto\n  {source}\n  server a {ORIGIN}\n\
         frontend h\n  mode http\n  bind {PROXY}:{HAPROXY_HTTP}\n  default_backend hb\n\
         backend hb\n  mode http\n  http-reuse always\n  {source}\n  server a {ORIGIN}\n"
    );
    std::fs::write(&file, text).context("writing HAProxy's configuration")?;
    let (file, place) = (file.display().to_string(), (&site.line.node, NODE_CPU));
    let process = Process::start(HAPROXY, &["-db", "-f", &file], place, &folder)?;
    process.listens(&site.line.node, format!("{PROXY}:{HAPROXY_HTTP}").parse()?)
}

fn nginx_proxy(site: &Site, folder: &Path) -> Result<Process> {
    // The file does not exist where the module is built in.
    let load = match Path::new(STREAM_MODULE).exists() {
        true => format!("load_module {STREAM_MODULE};"),
        false => String::new(),
    };
    let main = format!(
        "{load}\nstream {{ server {{ listen {PROXY}:{NGINX_TCP} backlog=4096; \
         proxy_pass {ORIGIN}; }} }}"
    );
    // Data for slow clients stays in memory, as in the other proxies.
    let http = format!(
        "tcp_nodelay on; keepalive_requests 100000000; \
         upstream u {{ server {ORIGIN}; keepalive 128; keepalive_requests 100000000; }} \
         server {{ listen {PROXY}:{NGINX_HTTP} backlog=4096; location / {{ proxy_pass http://u; \
         proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_max_temp_file_size 0; \
         }} }}"
    );
    let place = (&site.line.node, NODE_CPU);
    let listens_at = format!("{PROXY}:{NGINX_HTTP}").parse()?;
    let started =
        nginx::start(&nginx::configuration(&main, &http), place, folder, "nginx", listens_at);
    started.with_context(|| format!("nginx needs its module of streams, {STREAM_MODULE}: install the package libnginx-mod-stream"))
}
