//! Tests of port shares at `kernel`: a packet that cannot leave now goes up in its final form, to
//! wait for its session's share in the cell.

use bpf::Update;
use bpf_maps::{
    Account, FRAME_MEMORY, FUEL_SHIFT, LEVEL_KERNEL, META_COUNTED, META_COUNTED_SHIFT,
    META_EPOCH_SHIFT, META_LEAVES, PORT_SHARES, PORTS_MAX, PacketMeta, PortConfig, PortShare,
    QueueCredits,
};
use units::{PortId, SessionId};
use wire::{FrameBuilder, parse_frame, rewrite};

use crate::harness::{OUT_PORT, PORT, addressed};
use crate::kernel_harness::{Kernel, MARK, ours};
use crate::namespace::{NEXT_HOP, OUT_MAC, enter};
use crate::nic_harness::ENTRY;

/// Session of the harness's lane.
const SESSION: u32 = 4;
pub const OWN: u32 = PORTS_MAX as u32 + 7;
const PASS: u32 = 0;
const BOUNCE: u32 = 2;
const REDIRECT: u32 = 3 | (OUT_PORT as u32) << 16;

pub fn frame() -> Vec<u8> {
    let udp = FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2);
    addressed(udp.payload(&MARK).build())
}

impl Kernel {
    pub fn has_shares(&self) {
        for port in [PORT, OUT_PORT] {
            let mut config: PortConfig = self.door.port_config(PortId(port)).unwrap();
            config.flags |= PORT_SHARES;
            self.door.configure(PortId(port), &config).unwrap();
            self.door
                .accounts()
                .pay_for_port_share(PortId(port), SessionId(SESSION as u16), Some(OWN))
                .unwrap();
        }
        self.door.set_has_shares(true);
    }

    /// Sets the balance of the share in bytes; the account is never filled, and nothing waits.
    pub fn has_bytes(&self, bytes: i64) {
        self.change_port_share(|port_share| {
            let (left, full) = (bytes << FUEL_SHIFT, 1 << 50);
            let account = Account { left, full, ..Account::default() };
            *port_share = PortShare { account, ..PortShare::default() };
        });
    }

    fn change_port_share(&self, change: impl FnOnce(&mut PortShare)) {
        let mut port_share = self.port_share();
        change(&mut port_share);
        self.door.accounts().port_shares_map().update(&OWN, &port_share, Update::Any).unwrap();
    }

    pub fn port_share(&self) -> PortShare {
        self.door.accounts().port_share(OWN).unwrap()
    }

    pub fn has_room(&self, frames: u64, epoch: u32) {
        let room =
            QueueCredits { most: frames * FRAME_MEMORY as u64, epoch, ..QueueCredits::default() };
        self.door.services().credits_map().update(&SESSION, &room, Update::Any).unwrap();
    }

    pub fn waiting(&self) -> (PacketMeta, Vec<u8>) {
        let bytes = self.up.receive(ours);
        let (meta, frame) = bytes.split_at(size_of::<PacketMeta>());
        (bytemuck::pod_read_unaligned(meta), frame.to_vec())
    }
}

#[test]
fn a_packet_beyond_its_share_at_kernel_is_queued_as_it_would_leave_for_any_verdict() {
    if !enter("a_packet_beyond_its_share_at_kernel_is_queued_as_it_would_leave_for_any_verdict") {
        return;
    }
    let kernel = Kernel::load("tt-tcwait");
    kernel.add_tap();
    kernel.has_shares();
    kernel.has_room(8, 1);
    kernel.change_record(|lane| lane.epoch = 200);
    let frame = frame();
    let (mut passed, mut bounced) = (frame.clone(), frame.clone());
    let l3 = parse_frame(&frame).unwrap().l3_offset;
    rewrite::route(&mut passed, l3, OUT_MAC, NEXT_HOP).unwrap();
    rewrite::swap_macs(&mut bounced).unwrap();
    for (verdict, port, expected) in
        [(PASS, OUT_PORT, &passed), (REDIRECT, OUT_PORT, &frame), (BOUNCE, PORT, &bounced)]
    {
        kernel.has_bytes(0);
        let before = kernel.stats();
        let stats = kernel.verdict(&frame, verdict);
        let (meta, left) = kernel.waiting();
        assert_eq!(left, *expected, "verdict {verdict:x}");
        assert_eq!((meta.egress_port, meta.entry, meta.flow_hash), (port, ENTRY, OWN));
        let flags = META_LEAVES | META_COUNTED | 1 << META_COUNTED_SHIFT;
        assert_eq!(meta.flags, flags | 200 << META_EPOCH_SHIFT);
        let ends = stats.forwarded + stats.bounced + stats.redirected;
        assert_eq!(ends, before.forwarded + before.bounced + before.redirected + 1);
        let port_share = kernel.port_share();
        assert_eq!(
            (port_share.up, port_share.dropped, port_share.account.packets),
            ([0, 1], [0; 2], 0)
        );
        // The module stays at its level.
        assert_eq!(kernel.lane().level(), LEVEL_KERNEL);
    }
    let stats = kernel.stats();
    assert_eq!((stats.forwarded, stats.redirected, stats.bounced), (1, 1, 1));
    // For the lane all of them are under way.
    assert_eq!((kernel.lane().sent_up(), kernel.lane().left()), (3, 0));
}

#[test]
fn packets_queue_behind_waiting_ones_of_their_share_until_those_have_left() {
    if !enter("packets_queue_behind_waiting_ones_of_their_share_until_those_have_left") {
        return;
    }
    let kernel = Kernel::load("tt-tcbehind");
    kernel.add_tap();
    kernel.has_shares();
    kernel.has_room(8, 0);
    kernel.has_bytes(1);
    let frame = frame();
    // Packets are not split: the first finds a positive balance.
    kernel.verdict(&frame, REDIRECT);
    assert_eq!(kernel.far.receive(ours), frame);
    assert_eq!(kernel.port_share().account.sent, [0, frame.len() as u64]);
    kernel.verdict(&frame, REDIRECT);
    kernel.waiting();
    kernel.change_port_share(|port_share| port_share.account.left = 1 << 40);
    kernel.verdict(&frame, REDIRECT);
    kernel.waiting();
    assert_eq!(kernel.port_share().up, [2, 0]);
    kernel.change_port_share(|port_share| port_share.gone = 1);
    kernel.verdict(&frame, REDIRECT);
    kernel.waiting();
    kernel.change_port_share(|port_share| port_share.gone = 3);
    kernel.verdict(&frame, REDIRECT);
    assert_eq!(kernel.far.receive(ours), frame);
    // A packet of user level waits.
    kernel.change_port_share(|port_share| port_share.gone = 2);
    kernel.verdict(&frame, REDIRECT);
    kernel.waiting();
    assert_eq!((kernel.port_share().up, kernel.port_share().account.packets), ([4, 0], 2));
}

#[test]
fn a_packet_beyond_its_share_is_dropped_when_the_queue_is_full_or_there_is_no_cell() {
    if !enter("a_packet_beyond_its_share_is_dropped_when_the_queue_is_full_or_there_is_no_cell") {
        return;
    }
    let kernel = Kernel::load("tt-tcfull");
    kernel.has_shares();
    kernel.has_room(2, 0);
    kernel.has_bytes(0);
    let frame = frame();
    assert_eq!(kernel.verdict(&frame, REDIRECT).drop_share, 1, "there is no cell");
    kernel.add_tap();
    for _ in 0..3 {
        kernel.verdict(&frame, REDIRECT);
    }
    for _ in 0..2 {
        kernel.waiting();
    }
    let (stats, port_share) = (kernel.stats(), kernel.port_share());
    assert_eq!((stats.redirected, stats.drop_share, stats.drop_queue), (2, 2, 0));
    assert_eq!((port_share.up, port_share.dropped), ([2, 0], [0, 2]));
    let room: QueueCredits =
        kernel.door.services().credits_map().lookup(&SESSION).unwrap().unwrap();
    assert_eq!((room.sent, room.dropped), ([2 * FRAME_MEMORY as u64, 0], 1));
    assert!(kernel.far.is_silent(ours));
}
