//! Service `firewall` between hosts that use ping, curl and iperf3, at each level, and while it
//! moves.

use crate::common::{Line, SOON};
use crate::flows::{Conversation, LEVELS, fetches, iperf, move_about, pings};
use testkit::{Running, Service, root_or_skip, service_module};

/// Returns a line with the firewall on the path, and the client inside.
fn guarded(level: &str, allow: &str) -> Line {
    let line = Line::up();
    line.resolve_neighbours();
    let inside = format!(
        "{}/32 {}/128",
        line.net.v4("client", "r1").unwrap(),
        line.net.v6("client", "r1").unwrap()
    );
    let parameters = [("inside", &inside[..]), ("allow", allow)];
    let service = Service { rules: &["any"], level, parameters: &parameters, ..Service::default() };
    let deployed = line.node.deploy(&service_module("firewall").unwrap(), &service).unwrap();
    assert_eq!(deployed.service.level, level, "{}", deployed.service.level_reason);
    line
}

fn addresses(line: &Line, host: &str) -> [std::net::IpAddr; 2] {
    [line.net.v4(host, "r1").unwrap().into(), line.net.v6(host, "r1").unwrap().into()]
}

#[test]
fn the_firewall_admits_replies_and_refuses_connections_from_outside() {
    if !root_or_skip("the firewall") {
        return;
    }
    for level in LEVELS {
        let line = guarded(level, "");
        let (servers, clients) = (addresses(&line, "server"), addresses(&line, "client"));
        for address in servers {
            assert!(pings(&line, "client", address), "{level}: {address}");
            assert!(fetches(&line, "client", "server", address), "{level}: {address}");
        }
        // Of each protocol and each version of IP one: who gets no answer waits for a second. The others
        // are tests of the module (`pings_are_answered_and_errors_come_back`, `ipv6_is_guarded_the_same`).
        assert!(!pings(&line, "server", clients[0]), "{level}: {}", clients[0]);
        assert!(!fetches(&line, "server", "client", clients[1]), "{level}: {}", clients[1]);
        let stats = line.node.service("firewall").unwrap().stats;
        let refused = &stats.dropped;
        // Three pings, and each SYN as often as the server tried.
        assert!(refused["module.not asked for"] >= 4, "{level}: {refused:?}");
        assert_eq!(stats.counters["dropped"], refused.values().sum::<u64>(), "{level}");
        // A ping and a connection of each version; neighbours may have asked, too.
        assert_eq!((stats.counters["opened"], stats.counters["allowed"]), (4, 0), "{level}");
        assert_eq!(stats.below.packets > 0, level != "user");
    }
}

#[test]
fn the_firewall_admits_allowed_traffic_from_outside() {
    if !root_or_skip("the firewall") {
        return;
    }
    for level in LEVELS {
        let client = "tcp/1024-65535 icmp";
        let line = guarded(level, client);
        for address in addresses(&line, "client") {
            assert!(pings(&line, "server", address), "{level}: {address}");
            assert!(fetches(&line, "server", "client", address), "{level}: {address}");
        }
        let counters = line.node.service("firewall").unwrap().stats.counters;
        assert_eq!((counters["allowed"], counters["opened"]), (4, 0), "{level}");
    }
}

#[test]
fn a_connection_lives_while_the_firewall_moves() {
    if !root_or_skip("the firewall while it moves") {
        return;
    }
    let line = guarded("nic", "");
    let mut talk = Conversation::begin(&line);
    talk.goes_on();
    for more in [&[][..], &["-R"]] {
        let mut moves = 0;
        let bytes = iperf(&line, more, |_: &Running| moves = move_about(&line, "firewall"));
        assert!(bytes > 1 << 20 && moves > 5, "{bytes} bytes through {moves} moves, {more:?}");
        talk.goes_on();
    }
    let stats = line.node.service("firewall").unwrap().stats;
    // iperf3 has two connections each time.
    assert_eq!((stats.counters["opened"], stats.counters["picked_up"]), (5, 0));
    assert_eq!(stats.dropped, [].into(), "a flow that was forgotten would show here");
}

#[test]
fn the_firewalls_connections_are_flushed_by_a_message() {
    if !root_or_skip("messages to the firewall") {
        return;
    }
    let line = guarded("nic", "");
    let mut talk = Conversation::begin(&line);
    talk.goes_on();
    let client = line.node.client();
    assert_eq!(client.message("firewall", b"report").unwrap().answers, [Some(0)]);
    assert_eq!(client.message("firewall", b"?").unwrap().answers, [Some(-1)]);
    assert_eq!(client.message("firewall", b"flush").unwrap().answers, [Some(0)]);
    // The next segment from inside takes it up again.
    talk.goes_on();
    let picked_up = || {
        let counters = line.node.service("firewall").unwrap().stats.counters;
        (counters["picked_up"] == 1).then_some(())
    };
    assert!(testkit::wait_for(SOON, picked_up).is_some());
}
