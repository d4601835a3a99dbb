//! Reverse path filters of the kernel beside a node: packets that a cell hands to the kernel enter
//! by a device of the node's, to which no route leads back.

use crate::common::{Line, PROGRAM_TIME_MAX, SOON};
use testkit::{Net, NodeUnderTest, Service, root_or_skip, service_module, wait_for};

const PORT: u16 = 7000;
const DATAGRAMS: usize = 20;
/// Values of the sysctl for `all`, and of the node's device then.
const FILTERS: [(&str, &str); 4] = [("1", "2"), ("2", "0"), ("0", "0"), ("1", "2")];

fn set_filter(net: &Net, value: &str) {
    let setting = format!("net.ipv4.conf.all.rp_filter={value}");
    let output = net.run("r1", &["sysctl", "-qw", &setting], PROGRAM_TIME_MAX).unwrap();
    assert!(output.status.success(), "{output:#?}");
}

#[test]
fn what_a_cell_gives_to_the_kernel_passes_its_reverse_path_filter() {
    if !root_or_skip("reverse path filters") {
        return;
    }
    let net = Net::line(1500).unwrap();
    set_filter(&net, "1");
    // Its packets have no egress route, and a different source address.
    let node = NodeUnderTest::start_with(&net, "r1", "fast_path = \"never\"").unwrap();
    let line = Line { node, net };
    line.resolve_neighbours();
    let inside = format!("{}/32", line.net.v4("client", "r1").unwrap());
    let address = line.net.v4("r1", "server").unwrap().to_string();
    let parameters = &[("inside", &inside[..]), ("address", &address[..])];
    let (out, back) = (format!("src {inside}"), format!("dst {address}/32"));
    let rules = &[&out[..], &back];
    let service = Service { rules, parameters, ..Service::default() };
    line.node.deploy(&service_module("nat").unwrap(), &service).unwrap();
    let (receiver, sender) = (line.udp("server", PORT), line.sender_to(PORT));
    for (of_all, of_device) in FILTERS {
        set_filter(&line.net, of_all);
        let read = ["sh", "-c", "cat /proc/sys/net/ipv4/conf/tam-*/rp_filter"];
        let is_set = || (line.run("r1", &read).trim() == of_device).then_some(());
        assert!(wait_for(SOON, is_set).is_some(), "{of_all} is not followed");
        for level in ["user", "kernel", "nic"] {
            line.node.client().move_service("nat", level).unwrap();
            let before = line.books();
            for number in 0..DATAGRAMS {
                sender.send(&number.to_be_bytes()).unwrap();
                let arrived = receiver.recv(&mut [0; 8]);
                assert!(arrived.is_ok(), "{level}, {of_all}: {arrived:?}");
            }
            let balance = line.balance_since(&before);
            assert!(balance.drops.is_empty(), "{level}, {of_all}: {balance}");
        }
    }
}
