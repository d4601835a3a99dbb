//! AF_XDP: a UMEM, its sockets, and packets of one or more descriptors.
//!
//! ```text
//!            fill ring ─▶ ┌────────┐ ─▶ receive ring ─▶ Packet ─▶ verdict
//!  FramePool ◀────────────│ kernel │                                │
//!            completion ◀─└────────┘ ◀─ transmit ring ◀─────────────┘
//! ```
//!
//! Every frame of the UMEM is in exactly one place: the pool, a ring, or a
//! [`Packet`]. One cell has one UMEM; each (port, queue) has a socket on it, so
//! that a packet moves from the receive ring of one port to the transmit ring
//! of another without a copy. The socket descriptor is opened elsewhere, by a
//! process that may; nothing here needs a privilege.
//!
//! Not here: which packets arrive (the front door) and what happens to them
//! (the cell). Minimum kernel: 6.6, for frames of several descriptors.

mod packet;
mod ring;
mod socket;
mod umem;

pub use packet::{ASIDE_LENGTH, Packet, SEGMENTS_MAX};
pub use socket::{Rings, SetupError, Socket, SocketConfig, left_behind};
pub use umem::{FRAME_HEADROOM, FRAME_LENGTH, FramePool, Umem};
