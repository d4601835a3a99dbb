//! Tests of the front door in the kernel: every frame goes through the loaded program by
//! `BPF_PROG_TEST_RUN`, and the results are read from its maps.
//!
//! No frame is sent anywhere, except in `arrival`, `pinned`, `kernel`, `waiting`, `by_kernel` and
//! `order`. Each test is in a network namespace of its own and needs root; without it the tests
//! report that and are counted as skipped.

mod accounts;
mod arrival;
mod at_tc;
mod beyond_ip;
mod bridge;
mod by_kernel;
mod cache;
mod chance;
mod closed;
mod cut_through;
mod cycle;
mod forward;
mod fragments;
mod harness;
mod hidden;
mod intercept;
mod kernel;
mod kernel_harness;
mod lanes;
mod namespace;
mod nic;
mod nic_harness;
mod order;
mod parser;
mod pinned;
mod queue_credits;
mod replaced;
mod rules;
mod shares;
mod stack;
mod stages;
mod translate;
mod verified;
mod waiting;
mod wire_end;
mod xsk;
