//! Documents, counters and events of a node: what it shows, and nothing that it does.
//!
//! ```text
//!  owners ─ Daemon::view ─▶ View ─┬▶ documents ─▶ GET /v1/…
//!                                 └▶ counters ─▶ metrics
//! ```
//!
//! Nothing of a node can be changed by way of a [`view::View`].

pub(crate) mod counters;
pub(crate) mod documents;
pub(crate) mod exposition;
pub(crate) mod metrics;
pub(crate) mod reasons;
pub(crate) mod view;
