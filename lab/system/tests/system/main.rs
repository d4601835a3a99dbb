//! System tests: real packets of real programs through a real node, in namespaces that each
//! test makes and removes.
//!
//! ```text
//!  client ──10.77.1.0/24── r1 (the node: ports left, right) ──10.77.2.0/24── server
//! ```
//!
//! All need root, the release build of `tam` and the sample services, and run one at a time.
#![forbid(unsafe_code)]

mod access;
mod associations;
mod at_tc;
mod bad_input;
mod below;
mod bombs;
mod bridge;
mod capture;
mod charged;
mod clean_end;
mod closed_streams;
mod code_cache;
mod common;
mod conformance;
mod crowd;
mod crowds;
mod cut_through;
mod cycles;
mod demand;
mod demo;
mod desired;
mod dev;
mod disks;
mod downloads;
mod egress;
mod escape;
mod events;
mod firewall;
mod flakeway;
mod flows;
mod followed;
mod forwarders;
#[cfg(feature = "peers")]
mod go_filter;
mod graph;
mod guard;
mod handover;
mod history;
mod hooks;
mod http;
mod iperf;
mod kills;
mod lacks;
mod ledger;
mod levels;
mod many;
mod memory;
mod messages;
mod metrics;
mod modes;
mod nat;
mod netfilter;
mod nginx;
mod node_file;
mod one_core;
mod overload;
mod packet;
mod ping;
mod policy;
mod pools;
mod port_life;
mod port_pairs;
mod questions;
mod queues;
mod radio;
mod radio_peers;
mod refusals;
mod replace;
mod reverse_path;
mod rights;
mod routing;
mod runaways;
mod sessions;
mod shares;
mod signed;
mod slow_egress;
mod stack_drops;
mod stages;
mod streams;
mod transcode;
mod traps;
mod tun;
mod turns;
mod verdicts;
mod vlan;
mod web_peers;
mod why;
