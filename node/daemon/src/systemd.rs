//! Notifications to systemd (`sd_notify(3)`): ready, status, stopping, and the watchdog's keep-alive.
//!
//! ```text
//!  loop of the daemon ─▶ handle_turn(now, health) ─▶ notifications ─▶ send ─▶ $NOTIFY_SOCKET
//! ```
//!
//! [`Notifier`] decides what is sent and when; it reads no clock and opens nothing. [`send`] sends,
//! without waiting, and sends nothing where no service manager has set `NOTIFY_SOCKET`. A keep-alive comes from the
//! loop itself, never from a timer or thread of its own: a loop that hangs sends none, and systemd
//! ends the process. Cells, compile workers and codecs start with an empty environment, so they
//! know neither the socket nor the watchdog.

use crate::cells::CellNumber;
use crate::dataplane::mode::Mode;
use crate::observe::view::View;
use node::ServiceState;
use sd_notify::NotifyState;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use units::Nanos;

/// Keep-alives in one period of the watchdog, as `sd_watchdog_enabled(3)` recommends.
const KEEP_ALIVES_PER_PERIOD: u64 = 2;
/// Period in which the status is made again: it counts all services.
const STATUS_EVERY: Nanos = Nanos::from_millis(1_000);

/// Health of a node, as `systemctl status` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// True while every port that is served carries packets: a packet port needs the cell.
    pub(crate) is_forwarding: bool,
    /// Ports that are served, and all ports.
    pub(crate) ports: (usize, usize),
    /// Services that run, and all services.
    pub(crate) services: (usize, usize),
}

impl Health {
    /// Returns the health of a node.
    pub(crate) fn of(view: &View<'_>) -> Self {
        let ports = view.plane.ports();
        let up = ports.iter().filter(|port| !port.is_away());
        let wants_cell = up.clone().any(|port| port.mode() == Mode::Packet);
        let is_running = |state: &ServiceState| matches!(state, ServiceState::Running);
        let services = || view.node.services();
        Self {
            is_forwarding: !wants_cell || view.cells.is_bound(CellNumber::FIRST),
            ports: (up.count(), ports.len()),
            services: (services().filter(|it| is_running(&it.state)).count(), services().count()),
        }
    }

    /// Returns the sentence for `STATUS=`.
    fn status(self) -> String {
        let (ports, all_ports) = self.ports;
        let (services, all_services) = self.services;
        let verb = if self.is_forwarding { "Forwards" } else { "Starts" };
        format!(
            "{verb}: {ports} of {all_ports} ports up, {services} of {all_services} services running"
        )
    }
}

/// Message to systemd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// The node forwards and answers its API.
    Ready,
    /// Sentence for `systemctl status`.
    Status(String),
    /// Sign of life for the watchdog.
    KeepAlive,
    /// The node ends.
    Stopping,
}

/// Schedule of the notifications of one daemon.
#[derive(Debug)]
pub(crate) struct Notifier {
    /// Period of keep-alives; `None` without a watchdog for this process.
    keep_alive_every: Option<Nanos>,
    /// Time from which the next keep-alive is due.
    keep_alive_at: Nanos,
    is_ready: bool,
    /// Status that was sent last.
    status: String,
    /// Time from which the status is made again.
    status_at: Nanos,
}

impl Notifier {
    /// Creates the schedule for a watchdog that ends a process which is silent this long.
    pub(crate) fn new(watchdog: Option<Duration>) -> Self {
        let nanos = watchdog.map(|period| u64::try_from(period.as_nanos()).unwrap_or(u64::MAX));
        // Zero means that there is no watchdog.
        let nanos = nanos.filter(|nanos| *nanos > 0);
        Self {
            keep_alive_every: nanos.map(|nanos| Nanos(nanos / KEEP_ALIVES_PER_PERIOD)),
            keep_alive_at: Nanos::ZERO,
            is_ready: false,
            status: String::new(),
            status_at: Nanos::ZERO,
        }
    }

    /// Creates the schedule for the watchdog that systemd has set for this process by
    /// `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub(crate) fn from_environment() -> Self {
        Self::new(sd_notify::watchdog_enabled())
    }

    /// Returns what is to be sent at this turn of the loop. It is called at each turn, which comes
    /// at least with each heartbeat to the front door (100 ms). `health` is called once a second,
    /// and at each turn until the node is ready.
    pub(crate) fn handle_turn(
        &mut self,
        now: Nanos,
        health: impl FnOnce() -> Health,
    ) -> Vec<Notification> {
        let mut notifications = Vec::new();
        if !self.is_ready || now >= self.status_at {
            self.status_at = now + STATUS_EVERY;
            self.handle_health(health(), &mut notifications);
        }
        if let Some(every) = self.keep_alive_every
            && now >= self.keep_alive_at
        {
            self.keep_alive_at = now + every;
            notifications.push(Notification::KeepAlive);
        }
        notifications
    }

    fn handle_health(&mut self, health: Health, notifications: &mut Vec<Notification>) {
        if !self.is_ready && health.is_forwarding {
            self.is_ready = true;
            notifications.push(Notification::Ready);
        }
        let status = health.status();
        if self.status != status {
            self.status.clone_from(&status);
            notifications.push(Notification::Status(status));
        }
    }

    /// Returns what is to be sent before a node is taken down.
    pub(crate) fn stopping() -> Vec<Notification> {
        vec![Notification::Stopping, Notification::Status("Stops".to_owned())]
    }

    /// Returns what is to be sent before a process ends that failed.
    pub(crate) fn failed(reason: &str) -> Vec<Notification> {
        // A status is one line; a second one would be read as an assignment.
        vec![Notification::Status(reason.replace('\n', " "))]
    }
}

/// Sends notifications to the service manager, if there is one.
pub(crate) fn send(notifications: &[Notification]) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|_| !notifications.is_empty())
    else {
        return;
    };
    if let Err(error) = send_to(&socket, notifications) {
        tracing::warn!(%error, ?socket, "the service manager was not notified");
    }
}

/// Sends notifications as one datagram, one a line. An address that begins with `@` is abstract
/// (unix(7)). Never blocks: a service manager that does not read must not stop the daemon's loop.
///
/// # Errors
/// The address cannot be, nobody listens there, or its queue is full: the datagram is lost.
fn send_to(socket: &OsStr, notifications: &[Notification]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    let lines: String = notifications.iter().map(|it| format!("{}\n", state_of(it))).collect();
    sender.send_to_addr(lines.as_bytes(), &address).map(drop)
}

fn state_of(notification: &Notification) -> NotifyState<'_> {
    match notification {
        Notification::Ready => NotifyState::Ready,
        Notification::Status(status) => NotifyState::Status(status),
        Notification::KeepAlive => NotifyState::Watchdog,
        Notification::Stopping => NotifyState::Stopping,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORWARDING: Health = Health { is_forwarding: true, ports: (2, 2), services: (1, 3) };

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn texts(notifications: &[Notification]) -> Vec<String> {
        notifications.iter().map(|it| state_of(it).to_string()).collect()
    }

    #[test]
    fn ready_is_sent_once_and_not_before_the_node_forwards() {
        let mut notifier = Notifier::new(None);
        let starting = Health { is_forwarding: false, ..FORWARDING };
        let first = notifier.handle_turn(ms(0), || starting);
        assert_eq!(texts(&first), ["STATUS=Starts: 2 of 2 ports up, 1 of 3 services running"]);
        let second = notifier.handle_turn(ms(1), || FORWARDING);
        let status = "STATUS=Forwards: 2 of 2 ports up, 1 of 3 services running";
        assert_eq!(texts(&second), ["READY=1", status]);
        let lost = notifier.handle_turn(ms(2_000), || starting);
        assert_eq!(lost.len(), 1, "a status only: {lost:?}");
        assert_eq!(texts(&notifier.handle_turn(ms(4_000), || FORWARDING)), [status]);
    }

    #[test]
    fn a_status_is_made_once_a_second_and_sent_when_it_changes() {
        let mut notifier = Notifier::new(None);
        notifier.handle_turn(ms(0), || FORWARDING);
        let health = Health { services: (3, 3), ..FORWARDING };
        assert_eq!(notifier.handle_turn(ms(999), || unreachable!("not yet")), []);
        let status = "STATUS=Forwards: 2 of 2 ports up, 3 of 3 services running";
        assert_eq!(texts(&notifier.handle_turn(ms(1_000), || health)), [status]);
        assert_eq!(notifier.handle_turn(ms(2_000), || health), []);
    }

    #[test]
    fn keep_alives_come_at_half_of_the_watchdogs_period_and_only_from_turns() {
        let mut notifier = Notifier::new(Some(Duration::from_secs(10)));
        let mut is_sent_at = |at| {
            let sent = notifier.handle_turn(ms(at), || FORWARDING);
            sent.contains(&Notification::KeepAlive)
        };
        let sent: Vec<u64> = (0..20_000).step_by(100).filter(|at| is_sent_at(*at)).collect();
        assert_eq!(sent, [0, 5_000, 10_000, 15_000]);
        assert!(is_sent_at(60_000), "the first turn after the loop hung");
        assert!(!is_sent_at(60_100), "no keep-alive for the time in which it hung");
    }

    #[test]
    fn without_a_watchdog_there_are_no_keep_alives() {
        for mut notifier in [Notifier::new(None), Notifier::new(Some(Duration::ZERO))] {
            let is_sent = (0..100_000).step_by(100).any(|at| {
                let sent = notifier.handle_turn(ms(at), || FORWARDING);
                sent.contains(&Notification::KeepAlive)
            });
            assert!(!is_sent);
        }
    }

    #[test]
    fn a_service_manager_gets_one_datagram_at_a_path_or_an_abstract_address() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("tt-systemd-{}", std::process::id());
        let listeners = [
            (path.clone().into_os_string(), UnixDatagram::bind(&path).unwrap()),
            (
                format!("@{name}").into(),
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
            ),
        ];
        for (address, listener) in listeners {
            send_to(&address, &Notifier::stopping()).unwrap();
            let mut bytes = [0; 64];
            let length = listener.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], b"STOPPING=1\nSTATUS=Stops\n");
        }
        assert!(send_to(folder.path().join("none").as_os_str(), &Notifier::stopping()).is_err());
    }

    #[test]
    fn a_service_manager_that_does_not_read_stops_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let _listener = UnixDatagram::bind(&path).unwrap();
        let send = || send_to(path.as_os_str(), &[Notification::KeepAlive]);
        let mut results = std::iter::repeat_with(send);
        let full = results.by_ref().take(100_000).find_map(Result::err).expect("its queue is full");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_node_that_ends_says_so_and_a_reason_stays_one_line() {
        assert_eq!(texts(&Notifier::stopping()), ["STOPPING=1", "STATUS=Stops"]);
        assert_eq!(texts(&Notifier::failed("one\nREADY=1")), ["STATUS=one READY=1"]);
    }
}
