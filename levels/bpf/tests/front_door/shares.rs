//! Tests of port shares: the rate of a session's modules at a port from below user level.

use bpf::Update;
use bpf_maps::{
    Account, ETHERNET_REST, FUEL_SHIFT, PORT_GENERIC, PORT_RAW, PORT_SHARES, PORTS_MAX, PortShare,
};
use units::SessionId;
use wire::FrameBuilder;

use crate::cut_through::LEAVING;
use crate::harness::{OUT_PORT, PORT, XDP_DROP, XDP_PASS, XDP_REDIRECT, addressed};
use crate::namespace::{add_way_out, enter};
use crate::nic_harness::Nic;

/// Session of the harness's lane.
pub const SESSION: u16 = 4;
pub const OWN: u32 = PORTS_MAX as u32 + 7;
const PASS: u32 = 0;
const BOUNCE: u32 = 2;
const REDIRECT: u32 = 3;

fn frame() -> Vec<u8> {
    addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2).build())
}

impl Nic {
    pub fn set_shared(&mut self, port: u16) {
        self.door.change_port(port, |config| config.flags |= PORT_SHARES);
        self.door.set_has_shares();
    }

    /// Sets the balance of an account, which never fills, in bytes.
    pub fn has_bytes(&self, account: u32, bytes: u64) {
        let left = (bytes << FUEL_SHIFT) as i64;
        let account_of = Account { left, full: left as u64, ..Account::default() };
        let port_share = PortShare { account: account_of, ..PortShare::default() };
        self.door.map("tam_lines").update(&account, &port_share, Update::Any).unwrap();
    }

    pub fn port_share(&self, account: u32) -> PortShare {
        self.door.map("tam_lines").lookup(&account).unwrap().unwrap()
    }

    pub fn has_share(&self, port: u16) {
        let key = u32::from(port) << 16 | u32::from(SESSION);
        self.door.map("tam_line_of").update(&key, &OWN, Update::Any).unwrap();
    }

    /// Sends packets with this verdict; returns how many leave.
    fn leaving(&mut self, packets: usize, verdict: u32) -> usize {
        let mut left = 0;
        for _ in 0..packets {
            match self.verdict(&frame(), verdict).action {
                XDP_DROP => {}
                XDP_REDIRECT => left += 1,
                other => panic!("{other}"),
            }
        }
        left
    }
}

#[test]
fn packets_beyond_a_port_share_are_dropped_by_route_and_by_redirect() {
    if !enter("packets_beyond_a_port_share_are_dropped_by_route_and_by_redirect") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let length = frame().len() as u64;
    let on_the_wire = length + ETHERNET_REST;
    nic.has_share(OUT_PORT);
    nic.has_bytes(OWN, 0);
    assert_eq!(nic.leaving(2, PASS), 2, "nobody looks at a port without shares");
    nic.set_shared(OUT_PORT);
    for verdict in [PASS, REDIRECT | u32::from(OUT_PORT) << 16] {
        // Two and a half: packets are not split, and the excess becomes debt.
        nic.has_bytes(OWN, on_the_wire * 5 / 2);
        let before = nic.stats();
        assert_eq!(nic.leaving(5, verdict), 3, "verdict {verdict:x}");
        let (port_share, stats) = (nic.port_share(OWN), nic.stats());
        let account = port_share.account;
        assert_eq!(
            (account.sent, account.packets, port_share.dropped),
            ([3 * length, 0], 3, [2, 0])
        );
        assert_eq!(
            (port_share.up, port_share.sent_up, port_share.sent_above),
            ([0; 2], 0, 0),
            "nothing waits"
        );
        assert_eq!(account.left >> FUEL_SHIFT, -((on_the_wire / 2) as i64));
        assert_eq!(stats.drop_share - before.drop_share, 2);
        assert_eq!(stats.packets, nic.ended());
    }
    // Back by the arrival port, which has no shares yet.
    assert_eq!(nic.verdict(&frame(), BOUNCE).outcome, "to_nic");
    assert_eq!(nic.port_share(OWN).dropped, [2, 0]);
    nic.set_shared(PORT);
    nic.has_share(PORT);
    let before = nic.stats();
    assert_eq!(nic.verdict(&frame(), BOUNCE).action, XDP_DROP);
    assert_eq!(nic.stats().drop_share - before.drop_share, 1);
}

#[test]
fn sessions_without_a_port_share_use_one_unreserved_account_and_node_services_none() {
    if !enter("sessions_without_a_port_share_use_one_unreserved_account_and_node_services_none") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let on_the_wire = frame().len() as u64 + ETHERNET_REST;
    nic.set_shared(OUT_PORT);
    nic.has_share(OUT_PORT);
    nic.has_bytes(OWN, 100 * on_the_wire);
    nic.has_bytes(u32::from(OUT_PORT), 3 * on_the_wire);
    assert_eq!(nic.leaving(2, PASS), 2);
    for (session, left) in [(9, 2), (10, 1), (11, 0), (0, 2), (SESSION, 2)] {
        nic.lane().set_session(SessionId(session));
        assert_eq!(nic.leaving(2, PASS), left, "session {session}");
    }
    assert_eq!(
        (nic.port_share(OWN).dropped, nic.port_share(u32::from(OUT_PORT)).dropped),
        ([0; 2], [3, 0])
    );
}

/// Tests every pair of kinds, at `nic`: a packet that is charged is sent.
#[test]
fn redirected_packets_leave_by_each_kind_of_port_and_use_the_share_only_if_sent() {
    if !enter("redirected_packets_leave_by_each_kind_of_port_and_use_the_share_only_if_sent") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let length = frame().len() as u64;
    let redirect = REDIRECT | u32::from(OUT_PORT) << 16;
    for (from, flags) in
        [("native", 0), ("generic", PORT_GENERIC), ("TUN", PORT_GENERIC | PORT_RAW)]
    {
        nic.door.change_port(PORT, |config| config.flags = flags);
        for (to, flags, slow) in LEAVING {
            nic.door.change_port(OUT_PORT, |config| (config.flags, config.slow) = (flags, slow));
            nic.set_shared(OUT_PORT);
            nic.has_share(OUT_PORT);
            nic.has_bytes(OWN, 100 * length);
            let before = nic.stats();
            let done = nic.verdict(&frame(), redirect);
            let action = if from == "native" && slow != 0 { XDP_PASS } else { XDP_REDIRECT };
            assert_eq!(done.action, action, "{from} to {to}");
            assert_eq!(nic.stats().redirected - before.redirected, 1, "{from} to {to}");
            assert_eq!(nic.port_share(OWN).account.sent, [length, 0], "{from} to {to}");
        }
    }
    // A port that is gone, and a frame that the port does not take: nothing is charged.
    nic.has_bytes(OWN, 100 * length);
    nic.door.change_port(OUT_PORT, |config| config.mtu = 1);
    assert_eq!(nic.verdict(&frame(), redirect).action, XDP_DROP);
    nic.door.change_port(OUT_PORT, |config| config.ifindex = 0);
    assert_eq!(nic.verdict(&frame(), redirect).action, XDP_DROP);
    let (stats, port_share) = (nic.stats(), nic.port_share(OWN));
    assert_eq!((stats.drop_too_long, stats.drop_no_port), (1, 1));
    assert_eq!((port_share.account.sent, port_share.dropped), ([0; 2], [0; 2]));
}
