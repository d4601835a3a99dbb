//! Tests of queue credits: a packet takes its session's credit before it goes up to user level.

use bpf::Update;
use bpf_maps::{
    FRAME_BYTES, FRAME_MEMORY, HEAD_BYTES, HEAD_NOT, HEAD_THERE, HEAD_WANTED, LEVEL_NIC,
    LEVEL_USER, META_COUNTED_SHIFT, PacketMeta, QueueCredits, ROOM_SHARED,
};
use wire::FrameBuilder;

use crate::harness::{XDP_DROP, XDP_PASS, XDP_REDIRECT, addressed};
use crate::namespace::{add_way_out, enter};
use crate::nic_harness::{Nic, Script};

/// Session of the harness's lane.
const SESSION: usize = 4;
const RAISE: u32 = 4;
const FRAME: u64 = FRAME_MEMORY as u64;

fn frame(payload: usize) -> Vec<u8> {
    let udp = FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2);
    addressed(udp.payload(&vec![0; payload]).build())
}

impl Nic {
    fn room(&self, number: usize) -> QueueCredits {
        self.door.map("tam_rooms").lookup(&(number as u32)).unwrap().unwrap()
    }

    fn put_credits(&self, number: usize, room: QueueCredits) {
        self.door.map("tam_rooms").update(&(number as u32), &room, Update::Any).unwrap();
    }

    fn has_room(&self, frames: u64) {
        self.put_credits(SESSION, QueueCredits { most: frames * FRAME, ..QueueCredits::default() });
    }

    /// Sends packets that go up; returns how many do.
    fn send_up(&mut self, packets: usize, payload: usize) -> usize {
        let script = Script { verdict: RAISE, ..Script::default() };
        let mut up = 0;
        for _ in 0..packets {
            match self.run(&frame(payload), script).action {
                XDP_REDIRECT => up += 1,
                XDP_DROP => {}
                other => panic!("{other}"),
            }
            // All packets that went up have left: the lane may move.
            self.change_record(|lane| lane.left = lane.sent_up);
        }
        up
    }
}

#[test]
fn a_queue_takes_its_reserved_bytes_and_the_excess_is_dropped_on_its_account() {
    if !enter("a_queue_takes_its_reserved_bytes_and_the_excess_is_dropped_on_its_account") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.add_socket();
    for level in [LEVEL_USER, LEVEL_NIC] {
        nic.lane().set_target(level);
        nic.has_room(0);
        assert_eq!(nic.send_up(3, 20), 3, "nobody counts");
        assert_eq!(nic.room(SESSION), QueueCredits::default());
        nic.has_room(5);
        let before = (nic.stats(), nic.lane().sent_up(), nic.door.outcome_everywhere("drop_queue"));
        assert_eq!(nic.send_up(8, 20), 5, "level {level}");
        let room = nic.room(SESSION);
        assert_eq!((room.sent, room.dropped), ([5 * FRAME, 0], 3));
        assert_eq!(nic.lane().sent_up() - before.1, 5, "what was dropped never went up");
        let stats = nic.stats();
        assert_eq!(stats.packets, nic.ended());
        // Packets that a module raised have had their outcome.
        let of_service = stats.drop_queue - before.0.drop_queue;
        let of_port = nic.door.outcome_everywhere("drop_queue") - before.2;
        let expected = if level == LEVEL_USER { (0, 3) } else { (3, 0) };
        assert_eq!((of_service, of_port), expected);
        // Bytes that the cell releases become credit.
        nic.put_credits(SESSION, QueueCredits { done: 2 * FRAME, ..room });
        assert_eq!(nic.send_up(4, 20), 2);
    }
}

#[test]
fn a_packet_takes_the_frames_of_memory_that_it_needs_and_says_where_it_is_counted() {
    if !enter("a_packet_takes_the_frames_of_memory_that_it_needs_and_says_where_it_is_counted") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.add_socket();
    nic.lane().set_target(LEVEL_USER);
    let headers = frame(0).len();
    for epoch in 0..4u32 {
        nic.put_credits(
            SESSION,
            QueueCredits { most: 100 * FRAME, epoch, ..QueueCredits::default() },
        );
        let done = nic.run(&frame(FRAME_BYTES - headers), Script::default());
        let meta = &done.bytes[..size_of::<PacketMeta>()];
        let meta: PacketMeta = bytemuck::pod_read_unaligned(meta);
        assert_eq!(meta.counted_in(), Some((epoch & 1) as usize));
        assert_eq!(meta.flags >> META_COUNTED_SHIFT & 1, epoch & 1);
        let mut sent = [0; 2];
        sent[(epoch & 1) as usize] = FRAME;
        assert_eq!(nic.room(SESSION).sent, sent);
    }
}

#[test]
fn sessions_without_a_queue_share_one() {
    if !enter("sessions_without_a_queue_share_one") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.add_socket();
    nic.lane().set_target(LEVEL_USER);
    nic.put_credits(
        SESSION,
        QueueCredits { most: 5 * FRAME, shared: 1, ..QueueCredits::default() },
    );
    nic.put_credits(ROOM_SHARED, QueueCredits { most: 3 * FRAME, ..QueueCredits::default() });
    assert_eq!(nic.send_up(6, 20), 3);
    assert_eq!(nic.room(SESSION).sent, [3 * FRAME, 0], "what found no room there took none here");
    assert_eq!(nic.room(ROOM_SHARED).sent, [3 * FRAME, 0]);
    assert_eq!((nic.room(SESSION).dropped, nic.room(ROOM_SHARED).dropped), (3, 0));
}

#[test]
fn the_head_of_a_packet_beyond_the_queue_is_kept_when_wanted() {
    if !enter("the_head_of_a_packet_beyond_the_queue_is_kept_when_wanted") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.add_socket();
    for level in [LEVEL_USER, LEVEL_NIC] {
        nic.lane().set_target(level);
        let full = QueueCredits { most: FRAME, ..QueueCredits::default() };
        nic.put_credits(SESSION, full);
        assert_eq!(nic.send_up(2, 100), 1);
        assert_eq!(nic.room(SESSION).head_state, HEAD_NOT, "nobody watches");
        nic.put_credits(SESSION, QueueCredits { head_state: HEAD_WANTED, ..full });
        assert_eq!(nic.send_up(1, 100), 1);
        assert_eq!(nic.room(SESSION).head_state, HEAD_WANTED, "it had room");
        for payload in [100, 0] {
            let sent = frame(payload);
            nic.put_credits(SESSION, QueueCredits { head_state: HEAD_WANTED, ..nic.room(SESSION) });
            assert_eq!(nic.send_up(1, payload), 0);
            let room = nic.room(SESSION);
            assert_eq!(room.head_state, HEAD_THERE, "level {level}");
            let length = usize::from(room.head_length);
            assert_eq!(length, sent.len().min(HEAD_BYTES));
            assert_eq!(room.head[..length], sent[..length], "as it came");
            // The next one leaves it alone until it has been read.
            assert_eq!(nic.send_up(1, 60 - payload.min(60)), 0);
            assert_eq!(nic.room(SESSION).head_length, room.head_length);
        }
    }
}

#[test]
fn without_a_cell_no_queue_credit_is_taken_and_packets_are_forwarded_as_without_a_rule() {
    if !enter("without_a_cell_no_queue_credit_is_taken_and_packets_are_forwarded_as_without_a_rule")
    {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.has_room(1);
    nic.put_credits(SESSION, QueueCredits { sent: [FRAME, 0], ..nic.room(SESSION) });
    for level in [LEVEL_USER, LEVEL_NIC] {
        nic.lane().set_target(level);
        let done = nic.verdict(&frame(20), RAISE);
        assert_eq!(done.action, XDP_PASS, "level {level}");
    }
    assert_eq!((nic.room(SESSION).sent, nic.room(SESSION).dropped), ([FRAME, 0], 0));
}
