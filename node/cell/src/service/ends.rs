//! Where packets of a service ended, counted; and frames of its module's own making.

use crate::datapath::SendFailure;
use crate::datapath::{End, Exits};
use crate::protocol::ServiceReport;
use abi::layout::SEND_BY_ROUTE;
use std::collections::BTreeMap;

/// Reasons of a module that are counted apart; further ones share [`REASON_OTHER`].
const REASONS_MAX: usize = 64;
/// The reason under which those beyond [`REASONS_MAX`] are counted.
const REASON_OTHER: u16 = u16::MAX;

/// Sends a frame of the module's own making, by a port or, as an IP packet, where the kernel's
/// routes lead.
pub(super) fn send(report: &mut ServiceReport, exits: &mut Exits<'_>, port: u16, frame: &[u8]) {
    let end = exits.packet_of(frame).map(|packet| match port {
        SEND_BY_ROUTE => exits.hand_to_kernel(packet),
        _ => exits.send(port, packet),
    });
    match end {
        Some(End::Sent | End::ToKernel) => report.sent += 1,
        _ => report.sent_dropped += 1,
    }
}

/// Counts a packet that was not sent, or not by a port.
pub(super) fn count_end(report: &mut ServiceReport, end: End) {
    match end {
        // The caller counts it under its verdict's own name.
        End::Sent => {}
        End::ToKernel => report.to_kernel += 1,
        End::Cycle => report.drop_cycle += 1,
        End::Failed(SendFailure::NoPort) => report.drop_no_port += 1,
        End::Failed(SendFailure::Full) => report.drop_egress_full += 1,
        End::Malformed | End::Failed(SendFailure::NotIp) => report.drop_malformed += 1,
        End::UnknownVlan => report.drop_vlan += 1,
        End::KernelRefused => report.drop_kernel += 1,
        End::TooLong | End::Failed(SendFailure::TooLong) => report.drop_too_long += 1,
    }
}

pub(super) fn count_reason(reasons: &mut BTreeMap<u16, u64>, reason: u16) {
    let known = reasons.contains_key(&reason) || reasons.len() < REASONS_MAX;
    *reasons.entry(if known { reason } else { REASON_OTHER }).or_default() += 1;
}
