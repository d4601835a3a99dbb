//! Starts of services and of their versions, once their modules are compiled.

use super::Runtime;
use crate::compilers;
use crate::control::Control;
use crate::control::placement::Candidates;
use crate::dataplane::instances::Make;
use crate::pending::{Facts, Pending, packet_facts, stream_facts};
use abi::check::Kind;
use anyhow::{Context, Result};
use cell::Compiled;
use cell::protocol::{ServiceSpec, StateTransfer, StreamSpec, ToCell};
use module_store::Digest;
use node::{Event, ServiceStart};
use std::os::fd::AsFd;
use std::sync::Arc;
use units::EntryId;

/// Sends the cell a new version whose code is compiled.
fn replace_in_cell(
    runtime: &mut Runtime,
    control: &mut Control,
    facts: ServiceSpec,
    levels: Vec<abi::Level>,
    way: StateTransfer,
    compiled: &Arc<Compiled>,
) {
    let entry = facts.entry;
    match try_replace(runtime, control, facts, way, compiled) {
        Ok(()) => {
            let candidates = Candidates { levels, unfit: compiled.refused() };
            runtime.place(control, |it, _| it.handle_version_given(entry, candidates));
        }
        Err(error) => {
            runtime.plane.services().forget_next(entry);
            runtime.event(control, Event::ReplaceFailed { entry, reason: format!("{error:#}") });
        }
    }
}

fn try_replace(
    runtime: &mut Runtime,
    control: &mut Control,
    mut facts: ServiceSpec,
    way: StateTransfer,
    compiled: &Arc<Compiled>,
) -> anyhow::Result<()> {
    let entry = facts.entry;
    let make = make_for(runtime, control, &facts, compiled);
    let made = runtime.plane.services().share_next(make);
    facts.shared = made
        .map_err(anyhow::Error::msg)
        .context("allocating the memory that the service shares with the kernel")?;
    facts.kept.code = compiled.code_length();
    let mut fds = vec![compiled.code.as_fd()];
    fds.extend(runtime.plane.instances().next_fds(entry));
    runtime.cells.send(entry, &ToCell::Replace(Box::new(facts), way), &fds)
}

/// Starts a service, or another version of one, once its module is compiled.
pub(super) fn start_service(
    runtime: &mut Runtime,
    control: &mut Control,
    start: ServiceStart,
    replaces: Option<StateTransfer>,
) {
    let ServiceStart { entry, digest, .. } = &start;
    let module =
        digest.parse().ok().and_then(|d: Digest| Some((d, control.state().modules().get(&d)?)));
    let Some((digest, module)) = module else {
        let reason = format!("the module {digest} is no longer held");
        return not_begun(runtime, control, *entry, replaces, reason);
    };
    // The code is shared by all who run the module, so each one's permissions are checked.
    let imports = module.checked.imports.iter().copied().collect();
    if let Err(refused) = start.functions.permit(imports) {
        return not_begun(runtime, control, *entry, replaces, refused.to_string());
    }
    let pending = match module.checked.kind {
        Kind::Streams => Pending {
            facts: Facts::Streams(stream_facts(start, module)),
            levels: vec![abi::Level::User],
            replaces,
        },
        Kind::Packets => {
            let levels = start.levels.clone();
            Pending { facts: Facts::Packets(packet_facts(start, module)), levels, replaces }
        }
    };
    runtime.compilers.begin(control.state(), digest, pending);
    do_compiled(runtime, control);
}

/// Handles the pending actions of the compilers.
pub(super) fn do_compiled(runtime: &mut Runtime, control: &mut Control) {
    while let Some(action) = runtime.compilers.poll_action() {
        match action {
            compilers::Action::Wanted(module, entry) => {
                runtime.usage.billing_mut().note_compiled(control.state(), module, entry);
            }
            compilers::Action::Bill(module, took) => {
                runtime.usage.billing_mut().add_compilation(control.state(), module, took);
            }
            compilers::Action::Compiled(module, bpf, result) => {
                if let Ok(code) = &result {
                    control.handle_code(&module, bpf, code);
                }
                control.handle_compiled(&module, result.as_ref().err());
            }
            compilers::Action::Begin(pending, compiled) => {
                begin_in_cell(runtime, control, *pending, &compiled);
            }
            compilers::Action::Fail { entry, replaces, reason } => {
                not_begun(runtime, control, entry, replaces, reason);
            }
        }
    }
}

/// Reports that a service, or a version of one, does not begin.
fn not_begun(
    runtime: &mut Runtime,
    control: &mut Control,
    entry: EntryId,
    replaces: Option<StateTransfer>,
    reason: String,
) {
    let event = match replaces {
        Some(_) => Event::ReplaceFailed { entry, reason },
        None => Event::ServiceFailed { entry, reason },
    };
    runtime.event(control, event);
}

fn begin_in_cell(
    runtime: &mut Runtime,
    control: &mut Control,
    pending: Pending,
    compiled: &Arc<Compiled>,
) {
    let Pending { facts, levels, replaces } = pending;
    let facts = match facts {
        Facts::Packets(facts) => facts,
        Facts::Streams(facts) if replaces.is_some() => {
            return replace_streams(runtime, control, facts, compiled);
        }
        Facts::Streams(facts) => return begin_streams(runtime, control, facts, compiled),
    };
    if let Some(way) = replaces {
        return replace_in_cell(runtime, control, facts, levels, way, compiled);
    }
    let entry = facts.entry;
    if let Err(error) = try_start_in_cell(runtime, control, facts, compiled) {
        runtime.end_below(control, entry);
        return not_begun(runtime, control, entry, None, format!("{error:#}"));
    }
    let candidates = Candidates { levels, unfit: compiled.refused() };
    runtime.place(control, |it, around| it.handle_given(around, entry, candidates));
    // While the cell works.
    runtime.plane.keep_instance(entry);
}

/// Starts a service of streams, now that its module is compiled.
fn begin_streams(
    runtime: &mut Runtime,
    control: &mut Control,
    facts: StreamSpec,
    compiled: &Arc<Compiled>,
) {
    let entry = facts.entry;
    runtime.usage.billing_mut().begin_service(control.state(), runtime.clock.now(), entry);
    match try_start_streams(runtime, control, facts, compiled) {
        Ok(Some(port)) => {
            runtime.event(control, Event::ServiceListens { entry, port });
            runtime.settle_gro(control, None);
        }
        // The loss of the cell has been reported; the next one starts the service afresh.
        Ok(None) => {}
        Err(error) => not_begun(runtime, control, entry, None, format!("{error:#}")),
    }
}

/// Gives the cell a new version of a service of streams, now that its module is compiled.
fn replace_streams(
    runtime: &mut Runtime,
    control: &mut Control,
    mut facts: StreamSpec,
    compiled: &Arc<Compiled>,
) {
    let entry = facts.entry;
    facts.kept.code = compiled.code_length();
    runtime.plane.services().begin_next(entry);
    let message = ToCell::ReplaceStreams(Box::new(facts));
    match runtime.cells.send(entry, &message, &[compiled.code.as_fd()]) {
        Ok(()) => runtime.place(control, |it, _| {
            let levels = vec![abi::Level::User];
            let candidates = Candidates { levels, unfit: Vec::new() };
            it.handle_version_given(entry, candidates);
        }),
        Err(error) => {
            runtime.plane.services().forget_next(entry);
            runtime.event(control, Event::ReplaceFailed { entry, reason: format!("{error:#}") })
        }
    }
}

fn try_start_streams(
    runtime: &mut Runtime,
    control: &mut Control,
    mut facts: StreamSpec,
    compiled: &Arc<Compiled>,
) -> Result<Option<u16>> {
    let entry = facts.entry;
    if !runtime.cells.has_cell_of(entry) {
        return Ok(None);
    }
    facts.kept.code = compiled.code_length();
    let intercepted = runtime.plane.intercept()?;
    let fds: Vec<_> = [compiled.code.as_fd()].into_iter().chain(intercepted.fds()).collect();
    if let Err(error) = runtime.cells.send(entry, &ToCell::StartStreams(Box::new(facts)), &fds) {
        drop(intercepted);
        runtime.with_plane(control, |plane, _| plane.sweep_interceptions());
        return Err(error);
    }
    Ok(Some(intercepted.port()))
}

/// Returns the parameters of the instance that a service or a version runs on.
fn make_for<'a>(
    runtime: &Runtime,
    control: &Control,
    facts: &ServiceSpec,
    code: &'a Arc<Compiled>,
) -> Make<'a> {
    let entry = facts.entry;
    let session = control.node().service_of(entry).map(|service| service.session.clone());
    let ports = runtime.plane.ports().iter().map(|port| port.id()).collect();
    Make { entry, window: facts.window, code, session, ports }
}

fn try_start_in_cell(
    runtime: &mut Runtime,
    control: &mut Control,
    mut facts: ServiceSpec,
    compiled: &Arc<Compiled>,
) -> Result<()> {
    let entry = facts.entry;
    if let Some(lane) = runtime.plane.front().lane(entry) {
        lane.set_session(facts.session);
    }
    // Before the cell has answered, and packets come below.
    runtime.plane.promises().mark_unsettled();
    runtime.usage.billing_mut().begin_service(control.state(), runtime.clock.now(), entry);
    facts.kept.code = compiled.code_length();
    let make = make_for(runtime, control, &facts, compiled);
    facts.shared = runtime
        .plane
        .services()
        .share(make)
        .map_err(anyhow::Error::msg)
        .context("allocating the memory that the service shares with the kernel")?;
    let mut fds = vec![compiled.code.as_fd()];
    fds.extend(runtime.plane.instances().fds(entry));
    // Without a cell, its loss has been reported; the next one starts the service afresh.
    if runtime.cells.has_cell_of(entry) {
        runtime.cells.send(entry, &ToCell::Start(Box::new(facts)), &fds)?;
    }
    Ok(())
}
