//! Three stages: the operator's services before and after a principal's.

use crate::common::Line;
use crate::levels::{BELOW, stamped, stamper};
use api::RuleRequest;
use testkit::{Service, root_or_skip, wait_for};

const PACKETS: u32 = 50;

fn rule(line: &Line, text: &str, stage: &str) -> u32 {
    let (session, stage) = (Some("system".into()), Some(stage.into()));
    let rule = RuleRequest { session, stage, ..RuleRequest::new(text, "drop") };
    line.node.client().add_rules(&rule.into()).unwrap().rules[0]
}

fn packets_of(line: &Line, service: &str) -> u64 {
    line.node.service(service).unwrap().stats.packets
}

#[test]
fn a_packet_meets_the_operators_service_then_a_principals_then_the_operators_again() {
    if !root_or_skip("stages") {
        return;
    }
    let ways =
        [["user"; 3], ["nic"; 3], ["kernel"; 3], ["nic", "kernel", "user"], ["nic", "user", "nic"]];
    for levels in ways {
        let line = Line::up();
        line.resolve_neighbours();
        let rules = ["proto udp dport 7000"];
        let stages = [("first", "system", "in"), ("second", "", ""), ("third", "system", "out")];
        for ((name, session, stage), level) in stages.into_iter().zip(levels) {
            let service =
                Service { name, rules: &rules, level, session, stage, ..Service::default() };
            let deployed = line.node.deploy(&stamper(BELOW), &service).unwrap().service;
            assert_eq!(deployed.level, level, "{}", deployed.level_reason);
        }
        let (receiver, sender) = (line.udp("server", 7000), line.udp("client", 0));
        sender.connect(line.server(7000)).unwrap();
        let send = |number: u32| {
            let mut payload = [0; 12];
            payload[..4].copy_from_slice(&number.to_le_bytes());
            sender.send(&payload).unwrap();
        };
        let mut payload = [0; 12];
        for number in 0..PACKETS {
            send(number);
            assert_eq!(receiver.recv(&mut payload).unwrap(), 12, "{levels:?}");
            // The last service's stamp.
            assert_eq!(stamped(&payload), (number, number + 1, number + 1), "{levels:?}");
        }
        let seen = |services: [&str; 3]| services.map(|service| packets_of(&line, service));
        let all = ["first", "second", "third"];
        assert_eq!(seen(all), [u64::from(PACKETS); 3], "{levels:?}");
        let listed = line.node.client().rules().unwrap().rules;
        let mut counted: Vec<_> = listed.iter().map(|r| (r.stage.as_str(), r.packets)).collect();
        counted.sort_unstable();
        let packets = u64::from(PACKETS);
        assert_eq!(counted, [("in", packets), ("out", packets), ("service", packets)]);

        // A rule behind the principal's service drops what that one has passed.
        line.node.client().remove("third", false).unwrap();
        wait_for(crate::common::SOON, || line.node.service("third").is_err().then_some(()));
        rule(&line, "proto udp dport 7000", "out");
        send(0);
        let dropped = || {
            let stats = line.node.service("second").ok()?.stats;
            (stats.dropped.get("rule") == Some(&1)).then_some(())
        };
        wait_for(crate::common::SOON, dropped)
            .unwrap_or_else(|| panic!("{levels:?}: {:#?}", line.node.service("second")));
        assert_eq!(packets_of(&line, "first"), u64::from(PACKETS) + 1);
        // And one before it keeps all of it from both.
        rule(&line, "proto udp dport 7000 src 10.0.0.0/8", "in");
        line.node.client().remove("first", false).unwrap();
        wait_for(crate::common::SOON, || line.node.service("first").is_err().then_some(()));
        let before = packets_of(&line, "second");
        send(1);
        let gone = || {
            let ports = line.node.stats().ok()?.ports;
            let drops: u64 = ports.iter().filter_map(|p| p.outcomes.get("drop_rule")).sum();
            (drops == 1).then_some(())
        };
        wait_for(crate::common::SOON, gone).unwrap_or_else(|| panic!("{levels:?}"));
        assert_eq!(packets_of(&line, "second"), before, "{levels:?}");
    }
}
