//! Tests of plans without a system: the plan of a file, and the reason why one is refused.

use proptest::prelude::*;

use super::*;
use crate::{LINKS_MAX, Lab, PlanError};

const DEMO: &str = r#"
name = "demo"
[[host]]
name = "client"
[[router]]
name = "r1"
node = { fast_path = "always", limits = { rules = 4 } }
[[host]]
name = "server"
[[link]]
ends = ["client", "r1"]
[[link]]
ends = ["r1", "server"]
rate = "100Mbit"
mtu = 9000
vlan = 10
"#;

/// Plan written by hand from the rules in this module's heading.
const DEMO_PLAN: &str = r#"{
  "schema_version": 1,
  "lab": "demo",
  "nodes": [
    {
      "name": "client",
      "kind": "host",
      "namespace": "tam-demo-client",
      "routes": [
        { "destination": "10.77.2.0/24", "via": "10.77.1.2" },
        { "destination": "fd77:0:0:2::/64", "via": "fd77:0:0:1::2" }
      ]
    },
    {
      "name": "server",
      "kind": "host",
      "namespace": "tam-demo-server",
      "routes": [
        { "destination": "10.77.1.0/24", "via": "10.77.2.1" },
        { "destination": "fd77:0:0:1::/64", "via": "fd77:0:0:2::1" }
      ]
    },
    {
      "name": "r1",
      "kind": "router",
      "namespace": "tam-demo-r1",
      "routes": [],
      "node": { "fast_path": "always", "limits": { "rules": 4 } }
    }
  ],
  "links": [
    {
      "number": 1,
      "ends": [
        {
          "node": "client", "device": "to-r1", "address_device": "to-r1",
          "v4": "10.77.1.1/24", "v6": "fd77:0:0:1::1/64"
        },
        {
          "node": "r1", "device": "to-client", "address_device": "to-client",
          "v4": "10.77.1.2/24", "v6": "fd77:0:0:1::2/64"
        }
      ],
      "mtu": 1500
    },
    {
      "number": 2,
      "ends": [
        {
          "node": "r1", "device": "to-server", "address_device": "to-server.10",
          "v4": "10.77.2.1/24", "v6": "fd77:0:0:2::1/64"
        },
        {
          "node": "server", "device": "to-r1", "address_device": "to-r1.10",
          "v4": "10.77.2.2/24", "v6": "fd77:0:0:2::2/64"
        }
      ],
      "mtu": 9000,
      "rate_bits_per_second": 100000000,
      "vlan": 10
    }
  ]
}"#;

#[test]
fn three_nodes_have_this_plan() {
    let plan = Lab::parse(DEMO, "demo.toml").unwrap();
    let planned = serde_json::to_value(&plan).unwrap();
    let expected: serde_json::Value = serde_json::from_str(DEMO_PLAN).unwrap();
    assert_eq!(planned, expected, "{planned:#}");
    assert_eq!(serde_json::from_value::<Plan>(planned).unwrap(), plan, "and it can be read back");
}

#[test]
fn a_plan_is_asked_by_name() {
    let plan = Lab::parse(DEMO, "demo.toml").unwrap();
    assert_eq!(plan.node("r1").unwrap().kind, NodeKind::Router);
    assert!(plan.node("r2").is_none());
    assert_eq!(plan.routers().count(), 1);
    let ports: Vec<&str> = plan.ends_at("r1").map(|(_, end)| end.device.as_str()).collect();
    assert_eq!(ports, ["to-client", "to-server"]);
    let (v4, v6) = plan.addresses_of("server").unwrap();
    assert_eq!((v4.to_string(), v6.to_string()), ("10.77.2.2".into(), "fd77:0:0:2::2".into()));
}

#[test]
fn parallel_links_have_their_own_devices() {
    let link = "[[link]]\nends = ['a', 'b']\n";
    let nodes = "name = 'p'\n[[host]]\nname = 'a'\n[[host]]\nname = 'b'\n";
    let plan = Lab::parse(&format!("{nodes}{link}{link}"), "p.toml").unwrap();
    let devices: Vec<&str> = plan.ends_at("a").map(|(_, end)| end.device.as_str()).collect();
    assert_eq!(devices, ["to-b", "to-b+2"]);
}

#[test]
fn a_network_behind_a_host_is_not_reached_through_it() {
    let text = "name = 'p'\nhost = [{name = 'a'}, {name = 'm'}, {name = 'z'}]\n\
                link = [{ends = ['a', 'm']}, {ends = ['m', 'z']}]";
    let plan = Lab::parse(text, "p.toml").unwrap();
    assert!(plan.nodes.iter().all(|node| node.routes.is_empty()), "{plan:?}");
}

#[test]
fn a_refused_file_says_the_line_and_what_was_meant() {
    let nodes = "name = 'p'\n[[host]]\nname = 'client'\n[[router]]\nname = 'r1'\n";
    for (rest, expected) in [
        ("[[lnk]]\n", "t.toml:6: unknown key 'lnk' in the file; did you mean 'link'?"),
        (
            "[[switch]]\n",
            "t.toml:6: unknown key 'switch' in the file; there are name, host, router, link",
        ),
        (
            "[[link]]\nends = ['client', 'r1']\nrat = '1Gbit'\n",
            "t.toml:8: unknown key 'rat' in [[link]]; did you mean 'rate'?",
        ),
        (
            "[[link]]\nends = ['client', 'r2']\n",
            "t.toml:7: the link ends at 'r2', which is no host or router; did you mean 'r1'?",
        ),
        (
            "[[link]]\nends = ['client',\n  'gate']\n",
            "t.toml:8: the link ends at 'gate', which is no host or router; there are client, r1",
        ),
        (
            "[[link]]\nends = ['r1', 'r1']\n",
            "t.toml:7: the link goes from 'r1' to itself; it must join two nodes",
        ),
        (
            "[[link]]\nends = ['r1']\n",
            "t.toml:7: a link has two ends, this one has 1; write ends = [\"a\", \"b\"]",
        ),
        (
            "[[link]]\nmtu = 1500\n",
            "t.toml:6: [[link]] has no key 'ends'; add one, such as ends = [\"client\", \"r1\"]",
        ),
        (
            "[[link]]\nends = 'r1'\n",
            "t.toml:7: 'ends' must be an array of texts in quotes, and is of type string",
        ),
        (
            "[[link]]\nends = ['client', 'r1']\nmtu = 9001\n",
            "t.toml:8: 'mtu' is 9001; it must be from 1280 to 9000, what IPv6 needs and what a node takes",
        ),
        (
            "[[link]]\nends = ['client', 'r1']\nmtu = '1500'\n",
            "t.toml:8: 'mtu' must be a whole number, and is of type string",
        ),
        (
            "[[link]]\nends = ['client', 'r1']\nvlan = -1\n",
            "t.toml:8: 'vlan' is -1; it must be from 1 to 4094",
        ),
        (
            "[[link]]\nends = ['client', 'r1']\nrate = '100MB'\n",
            "t.toml:8: the rate '100MB' is not understood; write a whole number and bit, kbit, Mbit or Gbit, from 1kbit to 100Gbit, such as \"100Mbit\"",
        ),
        (
            "[[host]]\nname = 'r1'\n",
            "t.toml:5: the name 'r1' is already that of the node in line 7; choose another",
        ),
        (
            "[[host]]\nname = 'A b'\n",
            "t.toml:7: the name 'A b' has the character 'A' at position 1; use letters a-z, digits, '-' and '_', and begin with a letter or digit",
        ),
        (
            "[[host]]\nname = 'x'\nnode = {}\n",
            "t.toml:8: unknown key 'node' in [[host]]; there are name",
        ),
        (
            "[[router]]\nname = 'x'\nnode = 5\n",
            "t.toml:8: 'node' must be a table, and is of type integer",
        ),
        (
            "[link]\nends = 5\n",
            "t.toml:6: 'link' must be tables written [[link]], and is of type table",
        ),
    ] {
        let error = Lab::parse(&format!("{nodes}{rest}"), "t.toml").unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_file_that_is_no_topology_is_refused() {
    let message = |text: &str| Lab::parse(text, "t.toml").unwrap_err().to_string();
    assert!(message("name = 'x\n").starts_with("t.toml:1: this is not TOML: "));
    assert_eq!(
        message("\n[[host]]\nname='a'"),
        "t.toml:1: the file has no key 'name'; add one, such as name = \"demo\""
    );
    assert_eq!(
        message("name = 'x'"),
        "t.toml: there is no [[host]] and no [[router]]; a lab needs at least one"
    );
    let huge = "#".repeat(2 * 1024 * 1024);
    assert!(matches!(Lab::parse(&huge, "t.toml"), Err(PlanError::Length { .. })));
}

#[test]
fn links_beyond_the_number_of_networks_are_refused() {
    let nodes = "name = 'p'\n[[host]]\nname = 'a'\n[[router]]\nname = 'b'\n".to_owned();
    let links = |count: usize| "[[link]]\nends = ['a', 'b']\n".repeat(count);
    let most = Lab::parse(&(nodes.clone() + &links(LINKS_MAX)), "t.toml").unwrap();
    assert_eq!(most.links.last().unwrap().ends[0].v4.to_string(), "10.77.250.1/24");
    let error = Lab::parse(&(nodes + &links(LINKS_MAX + 1)), "t.toml").unwrap_err();
    assert_eq!(
        error.to_string(),
        "t.toml: 251 links are too many, at most 250 are possible: each has its own network 10.77.N.0/24"
    );
}

/// Generates routers in a random tree with more links across, and hosts at some of them.
fn topology() -> impl Strategy<Value = String> {
    let routers = prop::collection::vec(any::<prop::sample::Index>(), 1..12);
    let across = prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 0..8);
    let hosts = prop::collection::vec(any::<prop::sample::Index>(), 0..8);
    (routers, across, hosts).prop_map(|(routers, across, hosts)| {
        let mut text = "name = 'random'\n".to_owned();
        let mut links = String::new();
        let mut link = |a: String, b: String| {
            links += &format!("[[link]]\nends = ['{a}', '{b}']\n");
        };
        for (number, parent) in routers.iter().enumerate() {
            text += &format!("[[router]]\nname = 'r{number}'\n");
            if number > 0 {
                link(format!("r{}", parent.index(number)), format!("r{number}"));
            }
        }
        for (a, b) in across {
            let (a, b) = (a.index(routers.len()), b.index(routers.len()));
            if a != b {
                link(format!("r{a}"), format!("r{b}"));
            }
        }
        for (number, router) in hosts.iter().enumerate() {
            text += &format!("[[host]]\nname = 'h{number}'\n");
            link(format!("h{number}"), format!("r{}", router.index(routers.len())));
        }
        text + &links
    })
}

/// Follows the routes as the kernel would, from a node to an address; returns the nodes on the
/// path.
fn way<'plan>(plan: &'plan Plan, from: &'plan PlannedNode, to: IpAddr) -> Vec<&'plan str> {
    let prefix = |end: &LinkEnd| if to.is_ipv4() { end.v4 } else { end.v6 };
    let owner = |address: IpAddr| {
        let mut ends = plan.links.iter().flat_map(|link| &link.ends);
        let end = ends.find(|end| prefix(end).address() == address).unwrap();
        plan.node(end.node.as_str()).unwrap()
    };
    let mut way = vec![from.name.as_str()];
    let mut node = from;
    while !plan.ends_at(node.name.as_str()).any(|(_, end)| prefix(end).address() == to) {
        let network = AddressPrefix::new(to, if to.is_ipv4() { 24 } else { 64 }).unwrap().network();
        let on_link =
            plan.ends_at(node.name.as_str()).any(|(_, end)| prefix(end).network() == network);
        let route = node.routes.iter().find(|route| route.destination == network);
        node = if on_link { owner(to) } else { owner(route.expect("a route").via) };
        assert!(!way.contains(&node.name.as_str()), "a loop: {way:?}, {}", node.name);
        way.push(node.name.as_str());
    }
    way
}

proptest! {
    #[test]
    fn every_pair_of_nodes_has_a_loop_free_path(text in topology()) {
        let plan = Lab::parse(&text, "random.toml").unwrap();
        for from in &plan.nodes {
            for (_, end) in plan.nodes.iter().flat_map(|node| plan.ends_at(node.name.as_str())) {
                let v4 = way(&plan, from, end.v4.address());
                let v6 = way(&plan, from, end.v6.address());
                prop_assert_eq!(&v4, &v6);
                let through = v4.iter().skip(1).rev().skip(1);
                prop_assert!(through.clone().all(|node| node.starts_with('r')), "{:?}", v4);
            }
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[a-z0-9\\[\\]{}='\", \n.#-]{0,200}") {
        let _ = Lab::parse(&text, "t.toml");
        let _ = Lab::parse(&format!("name = 'x'\n[[host]]\nname = 'a'\n{text}"), "t.toml");
    }
}
