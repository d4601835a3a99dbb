//! `tam session`: sessions, their reservations and their usage.

mod history;

use super::{Context, key_and_value};
use crate::amounts::{self, rate_of, size};
use crate::failure::Outcome;
use crate::output::Rows;
use api::{
    LeftInfo, MemoryUse, PeriodsKept, ReservationInfo, SessionChange, SessionCounts,
    SessionDetails, SessionList, SessionPromised, SessionRequest,
};
use clap::{ArgGroup, Args, Subcommand};
use session::Parts;

/// Subcommands of `tam session`.
#[derive(Debug, Subcommand)]
pub enum Session {
    /// Create a session; resources left out are not reserved
    Create(Create),
    /// List the sessions with their reservations and usage
    List,
    /// Show a session: each resource as reserved and as used recently, since the node started, and
    /// over the last minute and hour
    Show {
        /// The session
        session: String,
    },
    /// Change a session's reservation; what runs in it continues, resources not named stay
    Set(Set),
    /// Remove a session
    #[command(aliases = ["delete", "del", "rm"])]
    Remove {
        /// The session
        session: String,
        /// Also remove the services and rules of the session
        #[arg(long)]
        cascade: bool,
    },
}

/// Options of a reservation.
#[derive(Debug, Args)]
pub struct Reserved {
    /// A virtual processor: a slice in each period of a guest core, as 1ms/4ms or 25%/4ms, with
    /// +extra to also use extra time; up to 8
    #[arg(long, value_name = "SHARE")]
    cpu: Vec<String>,
    /// Time for services at nic and kernel, a slice in each period of a core, as 0.4ms/4ms
    #[arg(long, value_name = "SHARE")]
    below: Option<String>,
    /// Memory, as in 64MiB
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Bytes of packets that may wait for the session, as in 256KiB
    #[arg(long, value_name = "SIZE")]
    queue: Option<String>,
    /// A share of a port's sending rate, as right=2ms/6ms; may be repeated
    #[arg(long, value_name = "PORT=SHARE", value_parser = share_of_port)]
    send: Vec<(String, String)>,
    /// The weight for time that nobody reserved or uses, 1 to 1000; 100 is the default
    #[arg(long)]
    weight: Option<u16>,
}

/// Arguments of `tam session create`.
#[derive(Debug, Args)]
pub struct Create {
    /// The session's name
    session: String,
    #[command(flatten)]
    reserved: Reserved,
}

/// Arguments of `tam session set`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(NAMED))]
pub struct Set {
    /// The session
    session: String,
    #[command(flatten)]
    reserved: Reserved,
    /// Remove its virtual processors
    #[arg(long, conflicts_with = "cpu")]
    no_cpu: bool,
    /// Remove its time at nic and kernel
    #[arg(long, conflicts_with = "below")]
    no_below: bool,
    /// Remove its memory reservation
    #[arg(long, conflicts_with = "memory")]
    no_memory: bool,
    /// Remove its queue
    #[arg(long, conflicts_with = "queue")]
    no_queue: bool,
    /// Remove its shares of ports
    #[arg(long, conflicts_with = "send")]
    no_send: bool,
}

/// Options of which `tam session set` needs at least one.
const NAMED: [&str; 11] = [
    "cpu",
    "below",
    "memory",
    "queue",
    "send",
    "weight",
    "no_cpu",
    "no_below",
    "no_memory",
    "no_queue",
    "no_send",
];

fn share_of_port(text: &str) -> Result<(String, String), String> {
    key_and_value(text).map_err(|_| "a share of a port is given as PORT=SHARE".to_owned())
}

impl Session {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        match self {
            Self::Create(create) => {
                let made = client.create_session(&create.request())?;
                context.output.result(&made, || promised_text("made", &made))
            }
            Self::List => {
                let list = client.sessions()?;
                context.output.result(&list, || list_text(&list))
            }
            Self::Show { session } => {
                let details = client.session(&session)?;
                context.output.result(&details, || show_text(&details))
            }
            Self::Set(set) => {
                let session = set.session.clone();
                let changed = client.set_session(&session, &set.change())?;
                context.output.result(&changed, || promised_text("changed", &changed))
            }
            Self::Remove { session, cascade } => {
                let removed = client.remove_session(&session, cascade)?;
                context.output.result(&removed, || {
                    let mut text = format!("removed session {}", removed.session);
                    if !removed.services.is_empty() {
                        text.push_str(&format!(", its services {}", removed.services.join(", ")));
                    }
                    if !removed.rules.is_empty() {
                        text.push_str(&format!(", its rules {}", amounts::rules(&removed.rules)));
                    }
                    text
                })
            }
        }
    }
}

impl Create {
    fn request(self) -> SessionRequest {
        let Reserved { cpu, below, memory, queue, send, weight } = self.reserved;
        let (name, send) = (self.session, send.into_iter().collect());
        SessionRequest { name, cpu, below, memory, queue, send, weight }
    }
}

impl Set {
    fn change(self) -> SessionChange {
        let Reserved { cpu, below, memory, queue, send, weight } = self.reserved;
        let taken = [
            ("cpu", self.no_cpu),
            ("below", self.no_below),
            ("memory", self.no_memory),
            ("queue", self.no_queue),
            ("send", self.no_send),
        ];
        let taken = taken.into_iter().filter(|(_, is_taken)| *is_taken);
        SessionChange {
            cpu: (!cpu.is_empty()).then_some(cpu),
            below,
            memory,
            queue,
            send: (!send.is_empty()).then(|| send.into_iter().collect()),
            weight,
            without: taken.map(|(what, _)| what.to_owned()).collect(),
        }
    }
}

const NONE: &str = "-";

fn or_none<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), text)
}

fn promised_text(did: &str, promised: &SessionPromised) -> String {
    let mut rows = Rows::pairs();
    rows.add(["session".into(), format!("{} ({did})", promised.session)]);
    for (resource, amount) in resources(&promised.promised) {
        rows.add([resource, amount]);
    }
    rows.to_string()
}

/// Returns every reserved resource with its name.
fn resources(promised: &ReservationInfo) -> Vec<(String, String)> {
    let cpu = promised.cpu.iter().map(|share| ("cpu".to_owned(), share.clone()));
    let below = promised.below.iter().map(|share| ("below".to_owned(), share.clone()));
    let memory = promised.memory_bytes.map(|bytes| ("memory".to_owned(), size(bytes)));
    let queue = promised.queue_bytes.map(|bytes| ("queue".to_owned(), size(bytes)));
    let send = promised.send.iter().map(|(port, share)| (format!("send {port}"), share.clone()));
    let weight = ("weight".to_owned(), promised.weight.to_string());
    cpu.chain(below).chain(memory).chain(queue).chain(send).chain([weight]).collect()
}

fn list_text(list: &SessionList) -> String {
    let mut rows = Rows::new([
        "session", "cpu", "used", "below", "memory", "used", "queue", "send", "weight", "services",
        "packets",
    ]);
    for session in &list.sessions {
        let (promised, used) = (&session.promised, &session.used);
        let state = if session.state == "there" { "" } else { " (leaving)" };
        let short = if session.short.is_some() { " (short)" } else { "" };
        let send = promised.send.iter().map(|(port, share)| format!("{port} {share}"));
        let send: Vec<String> = send.collect();
        let cpu = promised.cpu.join(", ");
        rows.add([
            format!("{}{state}{short}", session.name),
            if cpu.is_empty() { NONE.to_owned() } else { cpu },
            or_none(used.window.cpu_ns, |ns| percent(ns, used.window_ms)),
            or_none(promised.below.clone(), |share| share),
            or_none(promised.memory_bytes, size),
            size(memory_used(session)),
            or_none(promised.queue_bytes, size),
            if send.is_empty() { NONE.to_owned() } else { send.join(", ") },
            promised.weight.to_string(),
            session.services.len().to_string(),
            used.total.packets.to_string(),
        ]);
    }
    match &list.left {
        Some(left) => format!("{rows}\nleft to promise: {}", left_text(left)),
        None => rows.to_string(),
    }
}

fn left_text(left: &LeftInfo) -> String {
    let parts = |parts: u64| Parts(parts).to_string();
    let cpu = left.cpu_parts.iter().map(|of| format!("cpu {}", parts(*of)));
    let rest = [
        format!("below {}", parts(left.below_parts)),
        format!("memory {}", size(left.memory_bytes)),
        format!("queue {}", size(left.queue_bytes)),
    ];
    let ports = left.port_parts.iter().map(|(port, of)| format!("{port} {}", parts(*of)));
    cpu.chain(rest).chain(ports).collect::<Vec<_>>().join(", ")
}

/// Formats time used as a percentage of one core over a window.
fn percent(ns: u64, window_ms: u64) -> String {
    match window_ms {
        0 => NONE.to_owned(),
        window => format!("{:.1}%", ns as f64 / (window as f64 * 10_000.0)),
    }
}

fn show_text(session: &SessionDetails) -> String {
    let mut facts = Rows::pairs();
    facts.add(["session".into(), format!("{} ({})", session.name, session.state)]);
    if session.built_in {
        facts.add(["kind".into(), "every node has it; it reserves nothing".into()]);
    }
    if let Some(owner) = &session.owner {
        facts.add(["owner".into(), owner.clone()]);
    }
    if let Some(reason) = &session.short {
        facts.add(["promised less".into(), reason.clone()]);
    }
    let services = session.services.join(", ");
    let services = if services.is_empty() { "none".to_owned() } else { services };
    facts.add(["services".into(), services]);
    facts.add(["rules".into(), amounts::rules(&session.rules)]);
    let over_time = history::text(session).map_or_else(String::new, |text| format!("\n{text}"));
    format!("{facts}\n{}{over_time}", use_rows(session))
}

/// Returns a row for each resource: reserved, and used.
fn use_rows(session: &SessionDetails) -> Rows {
    let (promised, used) = (&session.promised, &session.used);
    let SessionCounts { cpu_ns, fuel, packets, bytes, sent_bytes, queue_dropped, .. } = used.total;
    let mut rows = Rows::new(["resource", "promised", "used", "since the start"]);
    let per_second = |count: u64, unit: &str| match used.window_ms {
        0 => NONE.to_owned(),
        window => format!("{} {unit}/s", u128::from(count) * 1_000 / u128::from(window)),
    };
    let rate_now = |bytes| or_none(rate_of(bytes, used.window_ms), |rate| rate);
    let window = &used.window;
    let cpu_now = or_none(window.cpu_ns, |ns| percent(ns, used.window_ms));
    let cpu_total = or_none(cpu_ns, |ns| format!("{:.3} s", ns as f64 / 1e9));
    let cpu = if promised.cpu.is_empty() { NONE.to_owned() } else { promised.cpu.join(", ") };
    rows.add(["cpu".into(), cpu, cpu_now, cpu_total]);
    if let Some(kept) = kept_text(&used.kept) {
        rows.add(["kept".into(), String::new(), String::new(), kept]);
    }
    let below = or_none(promised.below.clone(), |share| share);
    let in_time = |time: Option<String>, fuel| match time {
        Some(time) => format!("{time} ({fuel})"),
        None => fuel,
    };
    let seconds = |ns| format!("{:.3} s", ns as f64 / 1e9);
    let below_now = window.below_ns.map(|ns| percent(ns, used.window_ms));
    let below_now = below_now.filter(|_| used.window_ms > 0);
    rows.add([
        "below".into(),
        below,
        in_time(below_now, per_second(window.fuel, "fuel")),
        in_time(used.total.below_ns.map(seconds), format!("{fuel} fuel")),
    ]);
    if let Some(all) = used.total.all_levels_ns {
        let now = or_none(window.all_levels_ns, |ns| percent(ns, used.window_ms));
        rows.add(["all levels".into(), String::new(), now, seconds(all)]);
    }
    let memory = or_none(promised.memory_bytes, size);
    let since = used.memory.as_ref().map_or_else(String::new, memory_text);
    rows.add(["memory".into(), memory, size(memory_used(session)), since]);
    let dropped = or_none(queue_dropped, |dropped| format!("{dropped} packets dropped"));
    let queue = or_none(promised.queue_bytes, size);
    rows.add(["queue".into(), queue, or_none(used.queue_bytes, size), dropped]);
    for (port, share) in &promised.send {
        let Some(line) = used.send.iter().find(|line| line.port == *port) else {
            rows.add([format!("send {port}"), share.clone(), NONE.into(), NONE.into()]);
            continue;
        };
        let (now, sent) = (rate_now(line.window_bytes), size(line.sent_bytes));
        rows.add([format!("send {port}"), share.clone(), now, sent]);
        let at_nic = format!("{}, {} packets dropped", size(line.sent_nic_bytes), line.dropped_nic);
        let at_kernel = format!(
            "{}, {} packets waited, {} dropped",
            size(line.sent_kernel_bytes),
            line.waited_kernel,
            line.dropped_kernel
        );
        let of_user = line.sent_bytes.saturating_sub(line.sent_nic_bytes + line.sent_kernel_bytes);
        let at_user = size(of_user);
        let levels = [("nic", &line.nic, at_nic), ("kernel", &line.kernel, at_kernel)];
        for (level, how, sent) in levels.into_iter().chain([("user", &line.user, at_user)]) {
            rows.add([format!("  {how} at {level}"), String::new(), String::new(), sent]);
        }
    }
    let sent_now = or_none(window.sent_bytes, rate_now);
    let sent = or_none(sent_bytes, size);
    rows.add(["sent at user".into(), String::new(), sent_now, sent]);
    let (now, all) = (per_second(window.packets, "packets"), format!("{packets} packets"));
    rows.add(["came".into(), String::new(), now, all]);
    rows.add([String::new(), String::new(), rate_now(window.bytes), size(bytes)]);
    rows.add(["weight".into(), promised.weight.to_string(), String::new(), String::new()]);
    rows
}

/// Returns the memory charged to the session in bytes; its linear memory where nothing else is
/// accounted.
fn memory_used(session: &SessionDetails) -> u64 {
    let used = &session.used;
    used.memory.as_ref().map_or(used.memory_bytes, |memory| memory.used_bytes)
}

fn memory_text(memory: &MemoryUse) -> String {
    let refused = match memory.refused {
        0 => String::new(),
        refused => format!(", refused more {refused} times"),
    };
    format!("at most {}{refused}", size(memory.peak_bytes))
}

/// Describes how late reserved time came, as the bound that 99 of 100 periods met.
fn kept_text(kept: &[PeriodsKept]) -> Option<String> {
    let all: u64 = kept.iter().map(|some| some.periods).sum();
    let most = kept.iter().scan(0, |sum, some| {
        *sum += some.periods;
        Some((some.points, *sum))
    });
    let (points, _) = most.into_iter().find(|(_, sum)| sum * 100 >= all * 99 && all > 0)?;
    let within =
        points.map_or("far from it".to_owned(), |points| format!("within {points} points"));
    Some(format!("99 of 100 of {all} periods {within}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_from_a_reservation_is_shown_for_99_of_100_periods() {
        let some = |points, periods| PeriodsKept { points, periods };
        assert_eq!(kept_text(&[]), None);
        let kept = [some(Some(0.05), 900), some(Some(0.1), 90), some(None, 10)];
        let text = kept_text(&kept).unwrap();
        assert_eq!(text, "99 of 100 of 1000 periods within 0.1 points");
        let text = kept_text(&[some(Some(0.05), 90), some(None, 10)]).unwrap();
        assert_eq!(text, "99 of 100 of 100 periods far from it");
    }

    fn gold() -> SessionDetails {
        SessionDetails {
            name: "gold".into(),
            state: "there".into(),
            promised: ReservationInfo {
                cpu: vec!["1ms/4ms+extra".into()],
                memory_bytes: Some(64 << 20),
                send: [("right".to_owned(), "2ms/6ms".to_owned())].into(),
                weight: 200,
                ..ReservationInfo::default()
            },
            used: api::SessionUse {
                memory_bytes: 65_536,
                window_ms: 2_000,
                window: SessionCounts {
                    cpu_ns: Some(500_000_000),
                    fuel: 2_000,
                    below_ns: Some(20_000_000),
                    all_levels_ns: Some(520_000_000),
                    packets: 10,
                    ..SessionCounts::default()
                },
                total: SessionCounts {
                    cpu_ns: Some(1_500_000_000),
                    fuel: 6_000,
                    below_ns: Some(60_000_000),
                    all_levels_ns: Some(1_560_000_000),
                    packets: 30,
                    ..SessionCounts::default()
                },
                ..api::SessionUse::default()
            },
            services: vec!["monitor".into()],
            rules: vec![0, 1],
            ..SessionDetails::default()
        }
    }

    #[test]
    fn a_session_is_shown_with_its_reservation_beside_its_use() {
        let text = show_text(&gold());
        let lines: Vec<&str> = text.lines().collect();
        for wanted in [
            "session   gold (there)",
            "services  monitor",
            "rules     #0, #1",
            "RESOURCE      PROMISED       USED                SINCE THE START",
            "cpu           1ms/4ms+extra  25.0%               1.500 s",
            "below         -              1.0% (1000 fuel/s)  0.060 s (6000 fuel)",
            "all levels                   26.0%               1.560 s",
            "memory        64MiB          64KiB",
            "queue         -              -                   -",
            "send right    2ms/6ms        -                   -",
            "came                         5 packets/s         30 packets",
            "weight        200",
        ] {
            assert!(lines.contains(&wanted), "no line '{wanted}' in\n{text}");
        }
    }

    #[test]
    fn session_memory_is_shown_with_its_peak_and_its_refusals() {
        let mut session = gold();
        let (used_bytes, peak_bytes, refused) = (3 << 20, 5 << 20, 2);
        let memory = MemoryUse { used_bytes, peak_bytes, refused, ..MemoryUse::default() };
        session.used.memory = Some(memory);
        let text = show_text(&session);
        let line =
            "memory        64MiB          3MiB                at most 5MiB, refused more 2 times";
        assert!(text.lines().any(|it| it == line), "{text}");
        session.used.memory.as_mut().unwrap().refused = 0;
        assert!(show_text(&session).lines().any(|it| it.ends_with("at most 5MiB")));
    }

    #[test]
    fn missing_measurements_are_not_zero() {
        let quiet = SessionDetails { used: api::SessionUse::default(), ..gold() };
        let text = show_text(&quiet);
        assert!(text.contains("cpu           1ms/4ms+extra  -     -"), "{text}");
    }

    #[test]
    fn a_port_share_names_a_port_and_a_share() {
        assert!(share_of_port("right=2ms/6ms").is_ok());
        assert!(share_of_port("2ms/6ms").unwrap_err().contains("PORT=SHARE"));
    }
}
