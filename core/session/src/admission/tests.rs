//! Refusals and their messages. Random histories are in tests/session/admission.rs.

use super::*;

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn capacity() -> Capacity {
    let port = PortCapacity { rate: BitsPerSecond(100_000_000), packet_max: Bytes(1500) };
    Capacity {
        guest_cores: 1,
        packet_cores: 1,
        memory: Bytes(256 << 20),
        packet_memory: Bytes(16 << 20),
        ports: [(name("left"), port), (name("right"), port)].into(),
        ports_unheld: false,
        one_core: false,
    }
}

fn reserve(json: &str) -> Reservation {
    serde_json::from_str(json).unwrap()
}

/// Returns the message of the first of these reservations that is refused.
fn refused(reservations: &[&str]) -> String {
    let mut admission = Admission::new(capacity());
    let mut ids = (2u16..).map(SessionId);
    let mut admit = |text: &&str| admission.admit(ids.next().unwrap(), &reserve(text)).err();
    reservations.iter().find_map(&mut admit).unwrap().to_string()
}

#[test]
fn shares_of_ports_that_cannot_be_enforced_are_refused() {
    let mut admission = Admission::new(Capacity { ports_unheld: true, ..capacity() });
    let refusal = admission.admit(SessionId(2), &reserve(r#"{"send":{"left":"2ms/10ms"}}"#));
    let refusal = refusal.unwrap_err().to_string();
    assert!(refusal.contains("of the port 'left' cannot be enforced") && refusal.contains("XDP"));
    assert_eq!(admission.admit(SessionId(3), &reserve(r#"{"cpu":["1ms/4ms"]}"#)), Ok(()));
}

#[test]
fn a_refusal_has_the_request_the_remainder_and_advice() {
    for (reservations, message) in [
        (
            &[r#"{"cpu":["2ms/4ms"]}"#, r#"{"cpu":["2ms/4ms+extra"]}"#][..],
            "the virtual processor 2ms/4ms+extra is 50 % of a guest core; with that period 40 % of \
             one core can still be reserved, of 90 %: request at most 1600us/4ms, or reduce \
             another session's reservation",
        ),
        (
            &[r#"{"cpu":["3599us/4ms"]}"#, r#"{"cpu":["50us/1ms"]}"#],
            "the virtual processor 50us/1ms is 5 % of a guest core; with that period 0.025 % of \
             one core can still be reserved, of 90 %: request a longer period, or reduce \
             another session's reservation",
        ),
        (
            &[r#"{"below":"2.4ms/4ms"}"#],
            "the time below user level, 2400us/4ms, is 60 % of a packet core; 50 % can still \
             be reserved, of 50 %: request at most 2ms/4ms, or reduce another session's reservation",
        ),
        (
            &[r#"{"memory":"200MiB"}"#, r#"{"memory":"64MiB"}"#],
            "64MiB of memory are requested, and 56MiB of 256MiB are left; request at most that, \
             or reduce another session's reservation",
        ),
        (
            &[r#"{"queue":"17MiB"}"#],
            "a queue of 17MiB is requested, and 16MiB of 16MiB of packet memory are left; request \
             at most that, or reduce another session's reservation",
        ),
        (
            &[r#"{"send":{"left":"65%/6ms"}}"#, r#"{"send":{"left":"3ms/6ms"}}"#],
            "3ms/6ms of the port 'left' is 50 % of its rate; 34 % can still be reserved, of 99 %: \
             request at most 2040us/6ms, or reduce another session's reservation",
        ),
        (
            &[r#"{"send":{"left":"100us/6ms"}}"#],
            "100us/6ms of the port 'left' is shorter than the transmission time of its longest \
             packet, 1500 bytes, and packets are not fragmented; request a slice of at least \
             120us, or a longer period with a slice to match",
        ),
        (&[r#"{"send":{"up":"1ms/6ms"}}"#], "there is no port 'up'; this node has 'left', 'right'"),
    ] {
        assert_eq!(refused(reservations), message);
    }
}

#[test]
fn many_short_slices_are_refused_for_their_overruns() {
    let mut admission = Admission::new(capacity());
    let tiny = reserve(r#"{"cpu":["50us/1ms"]}"#);
    let admitted = (2..).take_while(|&id| admission.admit(SessionId(id), &tiny).is_ok()).count();
    assert_eq!(admitted, 13, "65 % of slices, with their overruns 94 %");
    let refusal = admission.admit(SessionId(99), &tiny).unwrap_err().to_string();
    assert!(
        refusal.contains("with that period 1.2 % of one core can still be reserved"),
        "{refusal}"
    );
}

#[test]
fn with_one_core_no_period_below_100_ms_is_admitted() {
    let mut admission = Admission::new(Capacity { one_core: true, ..capacity() });
    for text in
        [r#"{"cpu":["10ms/99ms"]}"#, r#"{"below":"1ms/4ms"}"#, r#"{"send":{"left":"1ms/6ms"}}"#]
    {
        let refusal = admission.admit(SessionId(2), &reserve(text)).unwrap_err();
        assert!(matches!(refusal, Refusal::OneCore { .. }), "{refusal}");
        assert!(refusal.to_string().contains("at least 100ms"), "{refusal}");
    }
    assert_eq!(admission.admit(SessionId(2), &reserve(r#"{"cpu":["10ms/100ms"]}"#)), Ok(()));
}

#[test]
fn each_virtual_processor_is_on_one_core_and_stays_there() {
    let mut admission = Admission::new(Capacity { guest_cores: 2, ..capacity() });
    let two = reserve(r#"{"cpu":["1ms/4ms","3ms/4ms"]}"#);
    admission.admit(SessionId(2), &two).unwrap();
    assert_eq!(admission.cores(SessionId(2)), Some(&[1, 0][..]));
    assert_eq!(admission.left().guest, [Parts(150_000), Parts(650_000)]);
    let refusal = admission.admit(SessionId(3), &two).unwrap_err();
    assert!(matches!(refusal, Refusal::Processor { left: Parts(650_000), .. }), "{refusal:?}");
    let more = reserve(r#"{"cpu":["2ms/4ms","3ms/4ms"]}"#);
    admission.change(SessionId(2), &more).unwrap();
    assert_eq!(admission.cores(SessionId(2)), Some(&[1, 0][..]));
}

#[test]
fn a_session_holds_one_reservation() {
    let mut admission = Admission::new(capacity());
    let some = reserve(r#"{"cpu":["1ms/4ms"]}"#);
    assert_eq!(admission.change(SessionId(2), &some), Err(Refusal::Unknown { id: SessionId(2) }));
    admission.admit(SessionId(2), &some).unwrap();
    assert_eq!(admission.admit(SessionId(2), &some), Err(Refusal::Held { id: SessionId(2) }));
    assert_eq!(admission.reservation(SessionId(2)), Some(&some));
    assert_eq!(admission.release(SessionId(2)), Some(some));
    assert_eq!(admission.release(SessionId(2)), None);
    assert_eq!(admission.left(), Admission::new(capacity()).left());
}

#[test]
fn a_node_without_guest_cores_promises_no_processor() {
    let mut admission = Admission::new(Capacity::default());
    let refusal = admission.admit(SessionId(2), &reserve(r#"{"cpu":["1ms/4ms"]}"#)).unwrap_err();
    assert!(matches!(refusal, Refusal::Processor { total: Parts(0), fits: None, .. }));
}

fn used(bytes: u64, without_promise: bool) -> UsedBy {
    UsedBy { bytes: Bytes(bytes), without_promise }
}

#[test]
fn memory_in_unreserved_use_cannot_be_reserved_by_others() {
    let mut admission = Admission::new(capacity());
    let (gold, silver) = (SessionId(2), SessionId(3));
    admission.admit(gold, &reserve("{}")).unwrap();
    let by = [(gold, used(100 << 20, true))].into();
    admission.set_used(MemoryUsed { unreserved: Bytes(120 << 20), by });
    assert_eq!(admission.left().memory, Bytes(136 << 20));
    let says = admission.admit(silver, &reserve(r#"{"memory":"200MiB"}"#)).unwrap_err().to_string();
    assert_eq!(
        says,
        "200MiB of memory are requested, and 136MiB of 256MiB are left (sessions without a \
         reservation use 120MiB); request at most that, or reduce another session's reservation"
    );
    // A session may reserve memory that it already uses itself.
    let says = admission.change(gold, &reserve(r#"{"memory":"99MiB"}"#)).unwrap_err().to_string();
    assert!(says.contains("99MiB of memory are requested, and the session uses 101MiB"), "{says}");
    admission.change(gold, &reserve(r#"{"memory":"236MiB"}"#)).unwrap();
}

#[test]
fn a_session_cannot_reserve_less_memory_than_it_uses_with_its_queue() {
    let mut admission = Admission::new(capacity());
    let gold = SessionId(2);
    admission.admit(gold, &reserve(r#"{"memory":"100MiB"}"#)).unwrap();
    let by = [(gold, used(60 << 20, false))].into();
    // Unreserved use above the unreserved capacity takes nothing from sessions with a reservation.
    admission.set_used(MemoryUsed { unreserved: Bytes(250 << 20), by });
    for (change, is_taken) in [
        (r#"{"memory":"100MiB","weight":200}"#, true),
        (r#"{"memory":"59MiB"}"#, false),
        (r#"{"memory":"61MiB","queue":"2MiB"}"#, false),
        (r#"{"memory":"62MiB","queue":"2MiB"}"#, true),
        (r#"{"memory":"63MiB"}"#, false),
        ("{}", true),
    ] {
        assert_eq!(admission.change(gold, &reserve(change)).is_ok(), is_taken, "{change}");
    }
}
