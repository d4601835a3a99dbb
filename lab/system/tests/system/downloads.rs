//! Downloads by curl: every byte arrives, at the usual MTU and the largest, plainly and through a
//! service.

use std::net::IpAddr;

use crate::common::Line;
use crate::http::HttpServer;
use testkit::{Service, root_or_skip, service_module};

const MIB: u64 = 1 << 20;

#[test]
fn a_gibibyte_arrives_whole_at_mtu_1500() {
    if root_or_skip("downloads at MTU 1500") {
        downloads(1500, 1024 * MIB);
    }
}

#[test]
fn a_quarter_of_a_gibibyte_arrives_whole_at_mtu_9000() {
    if root_or_skip("downloads at MTU 9000") {
        downloads(9000, 256 * MIB);
    }
}

fn downloads(mtu: u32, length: u64) {
    let line = Line::with_mtu(mtu);
    line.resolve_neighbours();
    let v4 = line.net.v4("server", "r1").unwrap().into();
    let v6 = line.net.v6("server", "r1").unwrap().into();
    let before = line.books();
    download(&line, v4, length);
    line.balance_since(&before);
    let forwarded = |line: &Line| -> u64 {
        line.node.stats().unwrap().ports.iter().map(|port| port.outcomes["forwarded"]).sum()
    };
    // Segments one way; acknowledgments come on top.
    let segments = length / u64::from(mtu);
    assert!(forwarded(&line) > segments, "the fast path was not taken");
    download(&line, v6, 64 * MIB);

    let service = Service { rules: &["proto tcp"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
    let (before, plain) = (line.books(), forwarded(&line));
    download(&line, v4, length);
    let balance = line.balance_since(&before);
    let monitor = line.node.service("monitor").unwrap().stats;
    assert_eq!(forwarded(&line), plain, "all of it is the service's");
    assert!(monitor.packets > segments && monitor.packets <= balance.sent, "{monitor:#?}");
    download(&line, v6, 64 * MIB);
    line.books();
}

fn download(line: &Line, address: IpAddr, length: u64) {
    let server = HttpServer::start(&line.net, "server", address, length);
    let url = format!("http://{}/", server.address);
    let script = "set -o pipefail; curl -gsS --max-time 50 \"$0\" | sha256sum";
    let said = line.run("client", &["bash", "-c", script, &url]);
    assert_eq!(said.split_whitespace().next().unwrap(), server.digest(), "{address}");
}
