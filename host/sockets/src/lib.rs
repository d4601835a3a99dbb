//! Sockets and devices for packets and streams besides BPF and AF_XDP.
//!
//! ```text
//!  packet_socket   AF_PACKET, whole frames, for tools and tests
//!  frame_socket    AF_PACKET with shared rings, for ports in packet mode
//!  transparent     TCP at both ends' own addresses
//!  tun             TUN and TAP devices
//!  socket          counters of AF_XDP sockets
//! ```

pub mod frame_socket;
pub mod packet_socket;
pub mod socket;
pub mod transparent;
pub mod tun;
