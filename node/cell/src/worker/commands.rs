//! Routing of the daemon's commands to the owners of their subjects.
//!
//! A command without its descriptors ends the cell: the two ends do not understand each other.

use super::{AWAKE, Cell, EXPECT, adoption};
use crate::control::round::Round;
use crate::dispatch::Dispatcher;
use crate::protocol::{FromCell, ToCell};
use crate::sched::{Timer, pacer};
use crate::service::message::PendingMessage;
use crate::service::shared::Shared;
use crate::service::{Control, Service};
use anyhow::{Context, Result, anyhow, bail};
use bpf::{Answers, CreditTable, Lanes, PortShares, RuleFacts};
use bpf_maps::LEVEL_USER;
use rustix::fd::OwnedFd;
use units::CoarseInstant;

/// Takes a message's last descriptor.
fn descriptor(fds: &mut Vec<OwnedFd>, missing: &'static str) -> Result<OwnedFd> {
    fds.pop().context(missing)
}

/// Takes the map that came with a message.
fn map_of(message: &ToCell, fds: &mut Vec<OwnedFd>) -> Result<OwnedFd> {
    fds.pop().with_context(|| format!("{message:?} came without its map"))
}

/// Routes a command to the owner of its subject.
///
/// # Errors
/// A descriptor is missing, or the daemon cannot be notified.
pub(super) fn run<T: Timer>(
    cell: &mut Cell<T>,
    message: ToCell,
    mut fds: Vec<OwnedFd>,
    now: CoarseInstant,
) -> Result<()> {
    let Cell { link, loader, intake, dispatcher, streams, reports, .. } = cell;
    let round = &mut Round { now, link };
    match message {
        ToCell::Kernel => dispatcher.path_mut().set_kernel(fds.pop()),
        ToCell::KernelFrames => dispatcher.path_mut().set_kernel_frames(fds.pop()),
        ToCell::AddPort(facts) => {
            let fd = descriptor(&mut fds, "AddPort came without its socket")?;
            round.link.send(&dispatcher.add_port(&facts, fd))?;
        }
        ToCell::AddFrames(facts, bridge) => {
            let sockets = fds.try_into();
            let sockets = sockets.map_err(|_| anyhow!("AddFrames came without its sockets"))?;
            let (path, sessions) = dispatcher.path_and_sessions();
            path.add_frames(&facts, bridge, sockets, sessions);
            round.link.send(&FromCell::PortReady(facts.port, facts.queue))?;
        }
        ToCell::DivertedPort(port) => {
            let fd = descriptor(&mut fds, "Taken came without its descriptor")?;
            dispatcher.path_mut().hold_taken(port, fd);
        }
        ToCell::Rules(number) => {
            let fd = descriptor(&mut fds, "Rules came without their memory")?;
            dispatcher.path_mut().set_packet_port_rules(intake.install(number, &fd)?);
        }
        ToCell::Counts => {
            intake.count_in(descriptor(&mut fds, "Counts came without their memory")?)?;
        }
        ToCell::ChangePort(facts) => {
            let (path, sessions) = dispatcher.path_and_sessions();
            path.change_port(&facts, sessions);
        }
        ToCell::RemovePort(port) => {
            intake.drain_ports(dispatcher, round);
            let (path, sessions) = dispatcher.path_and_sessions();
            path.remove_port(port, sessions);
        }
        ToCell::Capture(facts) => dispatcher.path_mut().set_capture(facts),
        ToCell::Tap => intake.set_tap(fds.pop()),
        ToCell::Lanes
        | ToCell::QueueCredits
        | ToCell::PortShares
        | ToCell::Answers
        | ToCell::RuleFacts => take_map(dispatcher, &message, fds)?,
        ToCell::Memory(total) => loader.accounts().set_total(total),
        ToCell::SetPortShare(port, session, account) => {
            dispatcher.path_mut().set_payer(port, session, account);
        }
        ToCell::Session(facts) => {
            streams.set_session(&facts);
            dispatcher.set_session(pacer::now(), &facts);
        }
        ToCell::MemoryOf(session) => {
            let account = |id| (id, Box::new(loader.accounts().account(id)));
            round.link.send(&FromCell::MemoryOf(loader.accounts().rest(), session.map(account)))?;
        }
        ToCell::ForgetSession(id) => {
            dispatcher.forget_session(pacer::now(), id);
            streams.forget_session(id);
        }
        ToCell::Expect => cell.stay_awake(now + EXPECT),
        ToCell::Start(facts) => {
            if fds.is_empty() {
                bail!("Start came without its code");
            }
            loader.start(*facts, &fds, dispatcher, round)?;
            cell.stay_awake(now + EXPECT);
        }
        ToCell::StartStreams(facts) => {
            streams.start(*facts, fds, dispatcher.scheduler_mut(), round.link)?;
        }
        ToCell::ReplaceStreams(facts) => {
            streams.replace(*facts, fds, dispatcher.scheduler_mut(), round.link)?;
        }
        ToCell::Codecs(facts) => streams.codecs().set_facts(facts),
        ToCell::CodecStarted(number, pid) => {
            // The message has one descriptor, a socket.
            let socket = fds.into_iter().next();
            let socket = socket.context("CodecStarted came without its socket")?;
            streams.codecs().started(number, pid, socket);
        }
        ToCell::CodecEnded(number, why, cpu) => streams.codecs().ended(number, why, cpu),
        ToCell::Sockets { v6 } => streams.provide(v6, fds),
        ToCell::Replace(facts, transfer) => {
            if fds.is_empty() {
                bail!("Replace came without its code");
            }
            loader.replace((*facts, transfer), &fds, dispatcher, round)?;
            cell.stay_awake(now + EXPECT);
        }
        ToCell::Edges(entry, edges) => {
            if let Some(service) = dispatcher.services_mut().get_mut(entry) {
                service.set_edges(edges);
            }
        }
        ToCell::Closed(entry, closed) => match dispatcher.services_mut().get_mut(entry) {
            Some(service) => service.set_closed(closed),
            None => streams.set_closed(entry, closed),
        },
        ToCell::VersionKnown(entry) => {
            if let Some(service) = dispatcher.services_mut().get_mut(entry) {
                service.become_known();
            }
        }
        ToCell::Target(entry, level) => {
            if dispatcher.set_level(entry, level, round)? && level != LEVEL_USER {
                cell.stay_awake(now + AWAKE);
            }
        }
        ToCell::Recount(entry) => {
            dispatcher.recount(entry, Shared::begin_recount);
            round.link.send(&FromCell::Recounting(entry))?;
        }
        ToCell::Settle(entry) => {
            // No packet counted before the recount is left in the cell.
            dispatcher.flush();
            dispatcher.recount(entry, Shared::settle);
            round.link.send(&FromCell::Settled(entry))?;
        }
        ToCell::Adopt(keep) => adoption::adopt(cell, &keep, now)?,
        ToCell::Associate(keys) => {
            let id = dispatcher.path_mut().associate(&keys)?;
            round.link.send(&FromCell::Associated(id))?;
        }
        ToCell::Disassociate(id) => dispatcher.path_mut().disassociate(id),
        ToCell::CallAnswer(question, answer) => dispatcher.on_answer(question, answer, round),
        ToCell::Stop(entry) => {
            dispatcher.path_mut().forget_service(entry);
            let of_streams = streams.stop(entry);
            let report = of_streams.unwrap_or_else(|| dispatcher.stop(entry, round));
            round.link.send(&FromCell::Stopped(entry, Box::new(report)))?;
        }
        ToCell::Message(entry, message) => {
            let service = dispatcher.services().get(entry);
            let lanes = service.map_or(0, Service::lane_count);
            let control = Control::Message(PendingMessage::of_daemon(message.into()));
            if !dispatcher.request(entry, control, round) {
                let _ = round.link.send(&FromCell::Answered(entry, vec![None; lanes]));
            }
        }
        ToCell::Report => reports.handle_request(),
        ToCell::ReportSessions => reports.handle_request_for_sessions(),
    }
    Ok(())
}

/// Maps a table that the daemon shares with the front door or the kernel's programs. Mappings last
/// as long as the process: each service and session keeps references into them.
fn take_map(
    dispatcher: &mut Dispatcher<impl Timer>,
    message: &ToCell,
    mut fds: Vec<OwnedFd>,
) -> Result<()> {
    let map = map_of(message, &mut fds)?;
    match message {
        ToCell::Lanes => {
            let lanes = Lanes::from_fd(&map).context("mapping the lanes")?;
            dispatcher.services_mut().set_lanes(Box::leak(Box::new(lanes)));
        }
        ToCell::QueueCredits => {
            let rooms =
                CreditTable::from_fd(&map).context("mapping the queue credits of sessions")?;
            let sessions = dispatcher.scheduler_mut().sessions_mut();
            sessions.share(pacer::now(), Box::leak(Box::new(rooms)));
        }
        ToCell::PortShares => {
            let accounts =
                PortShares::from_fd(&map).context("mapping the accounts of ports' shares")?;
            dispatcher.path_mut().set_port_shares(accounts);
        }
        ToCell::Answers => {
            let device = descriptor(&mut fds, "Answers came without its device")?;
            let answers = Answers::from_fd(&map).context("mapping the memory for answers")?;
            dispatcher.path_mut().set_answers(answers, device);
        }
        _ => {
            let facts = RuleFacts::from_fd(&map).context("mapping the actions of rules")?;
            dispatcher.path_mut().set_rules(facts);
        }
    }
    Ok(())
}
