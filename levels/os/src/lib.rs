//! Descriptors, namespaces, netlink, offloads, signals: what the kernel offers besides BPF.

pub mod child;
pub mod cores;
pub mod fd_passing;
pub mod frame_socket;
pub mod netlink;
pub mod netns;
pub mod offload;
pub mod packet_socket;
pub mod process;
pub mod sandbox;
pub mod shared_words;
pub mod socket;
pub mod standard_streams;
pub mod sysctl;
pub mod transparent;
pub mod tun;
pub mod userns;

#[cfg(test)]
mod testing;
