//! Tests of the ledger against a model: a list of records.

use ledger::chain::{BATCH_MAX, ENDED_METERS_MAX};
use ledger::record::{FRAME_LENGTH, USAGE_LENGTH};
use ledger::{
    Account, Amounts, DamageKind, End, Field, Ledger, LedgerId, MeterId, Period, Reading,
    ReadingError, Receipt, ReceiptError, Replay, Totals, Usage, amounts,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use trust::{PublicKey, SecretKey, Seed, UnixTime};

const DAY: u64 = 86_400;

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&Seed::new([number; 32]))
}

fn account(number: u8) -> Account {
    let session = format!("s{}", number % 3).parse().unwrap();
    Account { principal: key(100 + number / 3).public(), session }
}

fn meter(number: u64) -> MeterId {
    MeterId([&number.to_le_bytes()[..], &[7; 8]].concat().try_into().unwrap())
}

fn reading(number: u8, meter_number: u64, count: u64) -> Reading {
    let reading = Amounts::new([count; amounts::FIELDS]).with(Field::Fetches, 1);
    let service = Some("monitor".parse().unwrap());
    let (account, meter) = (account(number), meter(meter_number));
    Reading { account, service, meter, reading, is_last: false }
}

/// Ledger with its segment files.
struct Disk {
    key: SecretKey,
    ledger: Ledger,
    segments: Vec<Vec<u8>>,
}

impl Disk {
    fn new(length_max: usize) -> Self {
        let key = key(1);
        let ledger = Ledger::new(LedgerId([9; 16]), key.public()).with_segments_of(length_max);
        Self { key, ledger, segments: Vec::new() }
    }

    fn append(&mut self, clock: u64, readings: &[Reading]) -> ledger::Appended {
        let appended = self.ledger.append(&self.key, UnixTime(clock), readings);
        if appended.begins {
            self.segments.push(Vec::new());
        }
        if let Some(last) = self.segments.last_mut() {
            last.extend(&appended.bytes);
        }
        appended
    }

    fn read(&self) -> Result<(End, Vec<(u64, Usage)>), ledger::Damage> {
        read(self.key.public(), &self.segments)
    }
}

fn read(node: PublicKey, segments: &[Vec<u8>]) -> Result<(End, Vec<(u64, Usage)>), ledger::Damage> {
    let (mut replay, mut records) = (Replay::new(node), Vec::new());
    for (bytes, index) in segments.iter().zip(1..) {
        replay.segment(index, bytes, index == segments.len() as u64, |number, usage| {
            records.push((number, usage.clone()));
        })?;
    }
    Ok((replay.end(), records))
}

/// Writes some batches of some accounts, in several segments.
fn filled(batches: u64, per_batch: u8, length_max: usize) -> Disk {
    let mut disk = Disk::new(length_max);
    for batch in 1..=batches {
        let readings: Vec<_> =
            (0..per_batch).map(|n| reading(n % 9, u64::from(n), batch * 10)).collect();
        assert!(disk.append(1_000_000 + batch, &readings).refused.is_empty());
    }
    disk
}

#[test]
fn a_replayed_ledger_has_all_records_and_can_be_appended_to() {
    let disk = filled(20, 12, 20 * FRAME_LENGTH);
    assert!(disk.segments.len() > 5, "it has several segments");
    let (end, records) = disk.read().unwrap();
    assert_eq!(records.len(), 20 * 12);
    assert_eq!((end.records, end.torn), (240, None));
    let read = end.ledger.unwrap();
    assert_eq!(read.chain(), disk.ledger.chain());
    assert_eq!(read.frames(), disk.ledger.frames());
    assert_eq!(read.segment(), disk.ledger.segment());
    // A record's number is the position of its frame.
    let frames: Vec<&[u8]> =
        disk.segments.iter().flat_map(|segment| segment.chunks(FRAME_LENGTH)).collect();
    for (number, usage) in &records {
        let frame = frames[usize::try_from(*number).unwrap()];
        assert_eq!(frame[16..16 + USAGE_LENGTH], usage.to_bytes());
    }
}

#[test]
fn any_single_bit_that_is_flipped_in_a_small_ledger_is_found() {
    let disk = filled(3, 2, 6 * FRAME_LENGTH);
    let bits = disk.segments.iter().map(|segment| segment.len() * 8).sum::<usize>();
    let (mut found, mut flipped) = (0, 0);
    for segment in 0..disk.segments.len() {
        for bit in 0..disk.segments[segment].len() * 8 {
            let mut changed = disk.segments.clone();
            changed[segment][bit / 8] ^= 1 << (bit % 8);
            flipped += 1;
            let damage = read(disk.key.public(), &changed).expect_err("a changed bit");
            assert_eq!(damage.segment, segment as u64 + 1, "bit {bit}: {damage}");
            let frame = bit / 8 / FRAME_LENGTH;
            assert_eq!(damage.offset, frame * FRAME_LENGTH, "bit {bit}: {damage}");
            let before: usize = changed[..segment].iter().map(Vec::len).sum();
            assert_eq!(damage.frame as usize, before / FRAME_LENGTH + frame);
            found += 1;
        }
    }
    assert_eq!((found, flipped), (bits, bits));
}

#[test]
fn ten_thousand_flipped_bits_of_a_large_ledger_are_detected() {
    let disk = filled(120, 40, 200 * FRAME_LENGTH);
    // State at the beginning of each segment, from which a flipped bit is searched.
    let node = disk.key.public();
    let last = disk.segments.len() as u64;
    let mut begins = vec![Replay::new(node)];
    for (bytes, index) in disk.segments.iter().zip(1..) {
        let mut replay = begins.last().unwrap().clone();
        replay.segment(index, bytes, index == last, |_, _| ()).unwrap();
        begins.push(replay);
    }
    let total: usize = disk.segments.iter().map(Vec::len).sum();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..10_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut byte = (random >> 20) as usize % total;
        let mut segment = 0;
        while byte >= disk.segments[segment].len() {
            byte -= disk.segments[segment].len();
            segment += 1;
        }
        let mut bytes = disk.segments[segment].clone();
        bytes[byte] ^= 1 << ((random >> 60) % 8);
        let index = segment as u64 + 1;
        let read = begins[segment].clone().segment(index, &bytes, index == last, |_, _| ());
        assert_eq!(read.expect_err("a changed bit").offset, byte / FRAME_LENGTH * FRAME_LENGTH);
    }
}

#[test]
fn a_tail_that_is_cut_off_anywhere_is_torn_and_the_rest_goes_on() {
    let mut disk = filled(3, 3, usize::MAX);
    let whole = disk.segments[0].len();
    let before = disk.ledger.clone();
    let next = disk.append(2_000_000, &[reading(0, 0, 50), reading(1, 1, 60)]);
    for cut in whole..whole + next.bytes.len() {
        let segments = [disk.segments[0][..cut].to_vec()];
        let (end, records) = read(disk.key.public(), &segments).unwrap();
        assert_eq!(records.len(), 9);
        let torn = end.torn.map(|torn| (torn.offset, torn.bytes));
        assert_eq!(torn, (cut > whole).then_some((whole, cut - whole)));
        let ledger = end.ledger.unwrap();
        assert_eq!(ledger.chain(), before.chain());
        // The daemon repeats its readings: nothing is lost, and nothing is billed twice.
        let mut again = ledger;
        let later = [reading(0, 0, 55), reading(1, 1, 60)];
        let again = again.append(&disk.key, UnixTime(2_000_010), &later);
        let used: Vec<u64> = again.records.iter().map(|it| it.used.get(Field::BytesIn)).collect();
        assert_eq!(used, [55 - 30, 60 - 30]);
    }
    // Sectors that were never written, before or after written ones.
    for (from, to) in
        [(whole.next_multiple_of(512), whole + next.bytes.len()), (whole, whole + 1024)]
    {
        let mut bytes = disk.segments[0].clone();
        bytes[from..to].fill(0);
        let (end, records) = read(disk.key.public(), &[bytes]).unwrap();
        assert_eq!((records.len(), end.torn.unwrap().offset), (9, whole));
    }
}

#[test]
fn a_first_batch_that_is_cut_off_leaves_an_empty_ledger() {
    let disk = filled(1, 1, usize::MAX);
    for cut in 0..disk.segments[0].len() {
        let (end, records) = read(disk.key.public(), &[disk.segments[0][..cut].to_vec()]).unwrap();
        assert_eq!((end.ledger.is_none(), records.len()), (true, 0), "{cut}");
        assert_eq!(end.torn.unwrap().offset, 0);
    }
}

#[test]
fn segments_that_are_missing_doubled_exchanged_or_cut_are_found() {
    let disk = filled(12, 3, 6 * FRAME_LENGTH);
    let node = disk.key.public();
    let count = disk.segments.len();
    assert!(count > 4);
    let kind = |segments: &[Vec<u8>]| read(node, segments).map(|_| ()).unwrap_err().kind;
    for gone in 0..count - 1 {
        let mut segments = disk.segments.clone();
        segments.remove(gone);
        assert!(matches!(kind(&segments), DamageKind::OtherChain(_)), "{gone}");
        // As files after a deletion: the others keep their names.
        let mut replay = Replay::new(node);
        let indices = (1..=count as u64).filter(|index| *index != gone as u64 + 1);
        let refused = indices.clone().find_map(|index| {
            let bytes = &disk.segments[index as usize - 1];
            replay.segment(index, bytes, index == count as u64, |_, _| ()).err()
        });
        assert_eq!(refused.unwrap().kind, DamageKind::Missing { missing: gone as u64 + 1 });
        let mut segments = disk.segments.clone();
        segments.insert(gone, segments[gone].clone());
        assert!(matches!(kind(&segments), DamageKind::OtherChain(_)), "{gone}");
        let mut segments = disk.segments.clone();
        segments.swap(gone, gone + 1);
        assert!(matches!(kind(&segments), DamageKind::OtherChain(_)), "{gone}");
        for left in [0, FRAME_LENGTH, disk.segments[gone].len() - FRAME_LENGTH] {
            let mut segments = disk.segments.clone();
            segments[gone].truncate(left);
            assert_eq!(kind(&segments), DamageKind::CutOff, "{gone}");
        }
    }
}

#[test]
fn another_nodes_ledger_and_another_signature_are_found() {
    let disk = filled(2, 2, usize::MAX);
    let other = key(2);
    let damage = read(other.public(), &disk.segments).unwrap_err();
    assert_eq!(damage.kind, DamageKind::OtherNode(Box::new(disk.key.public())));
    // Rewritten with valid hashes, but without the node's key.
    let (mut forged, mut chain) = (disk.segments[0].clone(), [0; 32]);
    forged[FRAME_LENGTH + 16 + 152] ^= 1;
    for frame in forged.chunks_mut(FRAME_LENGTH) {
        use sha2::Digest as _;
        let hash =
            sha2::Sha256::new().chain_update(b"tamandua ledger chain 1\n").chain_update(chain);
        chain = hash.chain_update(&frame[..FRAME_LENGTH - 32]).finalize().into();
        frame[FRAME_LENGTH - 32..].copy_from_slice(&chain);
    }
    let damage = read(disk.key.public(), &[forged]).unwrap_err();
    assert_eq!(damage.kind, DamageKind::NotSigned);
}

#[test]
fn a_reading_is_billed_once_however_often_it_is_given() {
    let mut disk = Disk::new(usize::MAX);
    let used = |appended: &ledger::Appended| -> u64 {
        appended.records.iter().map(|usage| usage.used.get(Field::PacketsIn)).sum()
    };
    assert_eq!(used(&disk.append(1, &[reading(0, 1, 7)])), 7);
    assert_eq!(used(&disk.append(2, &[reading(0, 1, 7), reading(0, 1, 7)])), 0);
    assert_eq!(used(&disk.append(3, &[reading(0, 1, 9), reading(0, 1, 9)])), 2);
    let last = Reading { is_last: true, ..reading(0, 1, 12) };
    assert_eq!(used(&disk.append(4, std::slice::from_ref(&last))), 3);
    let again = disk.append(5, std::slice::from_ref(&last));
    assert!(again.bytes.is_empty() && again.refused.is_empty());
    let beyond = disk.append(6, &[reading(0, 1, 13)]).refused;
    assert_eq!(beyond, [(0, ReadingError::Ended { meter: meter(1) })]);
    // Holds also after many other meters have ended.
    for other in 0..ENDED_METERS_MAX as u64 - 1 {
        let last = Reading { is_last: true, ..reading(1, 1000 + other, 1) };
        disk.append(7, &[last]);
    }
    assert!(disk.append(8, &[last]).bytes.is_empty());
}

#[test]
fn a_meter_that_runs_backwards_or_changes_its_account_is_refused_and_the_others_are_billed() {
    let mut disk = Disk::new(usize::MAX);
    disk.append(1, &[reading(0, 1, 9), reading(0, 2, 9)]);
    let back = disk.append(2, &[reading(0, 1, 8), reading(1, 2, 10), reading(0, 3, 1)]);
    assert_eq!(back.records.len(), 1);
    let (backwards, other) = (&back.refused[0].1, &back.refused[1].1);
    let field = Field::PacketsIn;
    assert_eq!(*backwards, ReadingError::Backwards { meter: meter(1), field });
    assert_eq!(*other, ReadingError::OtherAccount { meter: meter(2) });
    disk.read().unwrap();
    let many: Vec<_> = (0..BATCH_MAX as u64 + 3).map(|n| reading(0, 10 + n, 1)).collect();
    let appended = disk.append(3, &many);
    assert_eq!(appended.records.len(), BATCH_MAX);
    assert!(appended.refused.iter().all(|(_, error)| *error == ReadingError::TooMany));
    assert_eq!(disk.append(4, &many).records.len(), 3);
    disk.read().unwrap();
}

#[test]
fn a_clock_that_jumps_a_day_makes_no_negative_bill() {
    let mut disk = Disk::new(usize::MAX);
    let mut count = 0;
    let now = 10 * DAY;
    for clock in [now, now + 10, now + DAY, now + 20, now - DAY, now + 30, now + DAY + 1] {
        count += 5;
        disk.append(clock, &[reading(0, 1, count)]);
    }
    let (_, records) = disk.read().unwrap();
    let times: Vec<u64> = records.iter().map(|(_, usage)| usage.time.0).collect();
    let day = now + DAY;
    assert_eq!(times, [now, now + 10, day, day, day, day, day + 1]);
    let clocks: Vec<u64> = records.iter().map(|(_, usage)| usage.clock.0).collect();
    assert_eq!(clocks[4], now - DAY, "what the clock said is there");
    assert!(records.iter().all(|(_, it)| it.since <= it.time));
    let mut totals = Totals::default();
    records.iter().for_each(|(_, usage)| totals.add(usage).unwrap());
    assert_eq!(totals.of(&account(0)).unwrap().used.get(Field::PacketsIn), count);
    // Each period has its part, and all periods together have everything.
    let parts = [(0, now + 10), (now + 10, day), (day, u64::MAX)].map(|(since, until)| {
        let period = Period { since: UnixTime(since), until: UnixTime(until) };
        let within = records.iter().filter(|(_, usage)| period.has(usage));
        within.map(|(_, usage)| usage.used.get(Field::PacketsIn)).sum::<u64>()
    });
    assert_eq!(parts, [5, 5, count - 10]);
}

#[test]
fn an_overflowing_sum_is_an_error_and_not_a_smaller_bill() {
    let mut disk = Disk::new(usize::MAX);
    let huge = |meter| Reading {
        reading: Amounts::NONE.with(Field::BytesIn, 1 << 63),
        ..reading(0, meter, 0)
    };
    disk.append(1, &[huge(1), huge(2)]);
    let (_, records) = disk.read().unwrap();
    let mut totals = Totals::default();
    totals.add(&records[0].1).unwrap();
    let overflow = totals.add(&records[1].1).unwrap_err();
    assert_eq!((overflow.field, *overflow.account), (Field::BytesIn, account(0)));
    assert_eq!(totals.of(&account(0)).unwrap().used.get(Field::BytesIn), 1 << 63);
}

/// Returns the records of one principal.
fn own(records: &[(u64, Usage)], principal: PublicKey) -> Vec<Usage> {
    let own = records.iter().filter(|(_, usage)| usage.account.principal == principal);
    own.map(|(_, usage)| usage.clone()).collect()
}

#[test]
fn a_receipt_is_verified_with_the_nodes_public_key_and_reveals_nothing_about_others() {
    let disk = filled(4, 9, usize::MAX);
    let (_, records) = disk.read().unwrap();
    let mine = own(&records, account(0).principal);
    assert_eq!(mine.len(), 12);
    let receipt = Receipt::make(&disk.key, disk.ledger.id(), UnixTime(5), mine.clone()).unwrap();
    let text = receipt.to_text();
    let read = Receipt::parse(&text).unwrap();
    assert_eq!(read, receipt);
    assert_eq!(read.verify(&disk.key.public()).unwrap(), mine);
    let other = read.verify(&key(2).public()).unwrap_err();
    assert!(matches!(other, ReceiptError::OtherNode { .. }));
    // The same records in a ledger without others make the same receipt.
    let mut alone = Disk::new(usize::MAX);
    for batch in 1..=4 {
        let readings: Vec<_> = (0..3).map(|n| reading(n, u64::from(n), batch * 10)).collect();
        alone.append(1_000_000 + batch, &readings);
    }
    let (_, records) = alone.read().unwrap();
    let mine = own(&records, account(0).principal);
    let without = Receipt::make(&alone.key, alone.ledger.id(), UnixTime(5), mine.clone()).unwrap();
    assert_eq!(without.to_text(), text);
    // Part of the records makes a receipt as well.
    let part =
        Receipt::make(&disk.key, disk.ledger.id(), UnixTime(6), mine[3..7].to_vec()).unwrap();
    assert_eq!(
        Receipt::parse(&part.to_text()).unwrap().verify(&disk.key.public()).unwrap().len(),
        4
    );
}

#[test]
fn a_receipt_of_which_any_bit_was_changed_is_refused() {
    let disk = filled(2, 3, usize::MAX);
    let (_, records) = disk.read().unwrap();
    let mine = own(&records, account(0).principal);
    let node = disk.key.public();
    let text = Receipt::make(&disk.key, disk.ledger.id(), UnixTime(5), mine).unwrap().to_text();
    let (label, bytes) = pem_rfc7468::decode_vec(text.as_bytes()).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let ending = pem_rfc7468::LineEnding::LF;
        let text = pem_rfc7468::encode_string(label, ending, &changed).unwrap();
        let read = Receipt::parse(&text);
        assert!(read.is_err() || read.unwrap().verify(&node).is_err(), "bit {bit}");
    }
    for length in 0..bytes.len() {
        let ending = pem_rfc7468::LineEnding::LF;
        let text = pem_rfc7468::encode_string(label, ending, &bytes[..length]).unwrap();
        assert!(Receipt::parse(&text).is_err(), "{length}");
    }
}

#[test]
fn a_receipt_needs_records_of_one_principal_that_follow_each_other() {
    let disk = filled(2, 9, usize::MAX);
    let (_, records) = disk.read().unwrap();
    let mine = own(&records, account(0).principal);
    let make =
        |records| Receipt::make(&disk.key, disk.ledger.id(), UnixTime(5), records).unwrap_err();
    assert_eq!(make(Vec::new()), ReceiptError::Empty);
    let gap = [mine[0].clone(), mine[2].clone()].to_vec();
    assert_eq!(make(gap), ReceiptError::Chain { own_number: 1 });
    let swapped = [mine[1].clone(), mine[0].clone()].to_vec();
    assert_eq!(make(swapped), ReceiptError::Chain { own_number: 2 });
    let others = records.iter().map(|(_, usage)| usage.clone()).collect();
    assert!(matches!(make(others), ReceiptError::Chain { .. }));
    let edited = Usage { used: Amounts::NONE, ..mine[0].clone() };
    assert_eq!(make([edited, mine[1].clone()].to_vec()), ReceiptError::Chain { own_number: 1 });
}

/// Step of a random history.
#[derive(Clone, Debug)]
enum Step {
    /// Meters count further.
    Count(u8, u64),
    /// All meters are read and billed.
    Bill(u64),
    /// A write is interrupted, the daemon crashes, and the next one replays the files.
    Crash(u64, usize),
    /// A meter ends, and a new one takes its place.
    End(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..6_u8, 0..1000_u64).prop_map(|(meter, more)| Step::Count(meter, more)),
        3 => (0..3 * DAY).prop_map(Step::Bill),
        1 => (0..3 * DAY, 0..4000_usize).prop_map(|(clock, cut)| Step::Crash(clock, cut)),
        1 => (0..6_u8).prop_map(Step::End),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_bill_equals_the_usage_despite_crashes(steps in steps()) {
        let mut disk = Disk::new(12 * FRAME_LENGTH);
        // Indexed by slot: the current meter and its reading; by account: the amounts counted.
        let mut meters: Vec<(u64, u64)> = (0..6).map(|slot| (slot, 0)).collect();
        let (mut counted, mut next) = (BTreeMap::<Account, u64>::new(), 6);
        // Last readings that are not in the ledger yet; they survive a crash, like counters in the
        // kernel.
        let mut pending: Vec<Reading> = Vec::new();
        let mut model: Vec<Usage> = Vec::new();
        let show = |meters: &[(u64, u64)], pending: &[Reading]| -> Vec<Reading> {
            let now = meters.iter().zip(0..).map(|((meter, count), slot)| Reading {
                reading: Amounts::NONE.with(Field::PacketsIn, *count),
                ..reading(slot, *meter, 0)
            });
            pending.iter().cloned().chain(now).collect()
        };
        for step in steps.into_iter().chain([Step::Bill(9 * DAY)]) {
            match step {
                Step::Count(slot, more) => {
                    meters[usize::from(slot)].1 += more;
                    *counted.entry(account(slot)).or_default() += more;
                }
                Step::Bill(clock) => {
                    let readings = show(&meters, &pending);
                    let appended = disk.append(clock, &readings);
                    prop_assert!(appended.refused.is_empty(), "{:?}", appended.refused);
                    model.extend(appended.records);
                    pending.clear();
                }
                Step::Crash(clock, cut) => {
                    let appended = disk.append(clock, &show(&meters, &pending));
                    let lost = cut.clamp(0, appended.bytes.len());
                    if lost == 0 {
                        model.extend(appended.records);
                    } else if let Some(last) = disk.segments.last_mut() {
                        last.truncate(last.len() - lost);
                    }
                    let (end, _) = disk.read().unwrap();
                    if let (Some(torn), Some(last)) = (&end.torn, disk.segments.last_mut()) {
                        last.truncate(torn.offset);
                        if torn.offset == 0 {
                            disk.segments.pop();
                        }
                    }
                    let new = || Ledger::new(LedgerId([9; 16]), disk.key.public());
                    disk.ledger = end.ledger.unwrap_or_else(new).with_segments_of(12 * FRAME_LENGTH);
                }
                Step::End(slot) => {
                    let (meter, count) = meters[usize::from(slot)];
                    pending.push(Reading {
                        reading: Amounts::NONE.with(Field::PacketsIn, count),
                        is_last: true,
                        ..reading(slot, meter, 0)
                    });
                    meters[usize::from(slot)] = (next, 0);
                    next += 1;
                }
            }
        }
        let (end, records) = disk.read().unwrap();
        prop_assert_eq!(end.torn, None);
        let records: Vec<Usage> = records.into_iter().map(|(_, usage)| usage).collect();
        prop_assert_eq!(&records, &model);
        let mut totals = Totals::default();
        records.iter().for_each(|usage| totals.add(usage).unwrap());
        for (account, counted) in counted {
            let billed = totals.of(&account).map_or(0, |sum| sum.used.get(Field::PacketsIn));
            prop_assert_eq!(billed, counted, "{:?}", account);
        }
    }

    #[test]
    fn arbitrary_bytes_are_a_torn_tail_or_damage(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let mut replay = Replay::new(key(1).public());
        let read = replay.segment(1, &bytes, true, |_, _| panic!("nobody wrote a record"));
        prop_assert!(read.is_err() || replay.end().ledger.is_none());
    }

    #[test]
    fn arbitrary_text_is_no_receipt(text in "\\PC{0,200}") {
        prop_assert!(Receipt::parse(&text).is_err());
    }
}
