//! Any bytes as a ledger or receipt: accepted records were signed, and are continued; anything else
//! is a torn tail or damage with its position.

use ::ledger::receipt::TEXT_LENGTH_MAX;
use ::ledger::{Account, Amounts, Field, Ledger, LedgerId, MeterId, Reading, Receipt, Replay};
use ::trust::{SecretKey, Seed, UnixTime};

fn node() -> SecretKey {
    SecretKey::from_seed(&Seed::from([1; 32]))
}

fn reading(count: u64) -> Reading {
    let principal = SecretKey::from_seed(&Seed::from([2; 32])).public();
    let account = Account { principal, session: "s".parse().expect("a letter is a name") };
    let reading = Amounts::NONE.with(Field::PacketsIn, count);
    Reading { account, service: None, meter: MeterId([3; 16]), reading, is_last: false }
}

pub fn segment(bytes: &[u8]) {
    let (node, mut records) = (node(), 0);
    let mut replay = Replay::new(node.public());
    match replay.segment(1, bytes, true, |_, _| records += 1) {
        Err(damage) => assert!(!damage.to_string().is_empty() && damage.offset <= bytes.len()),
        Ok(()) => {
            let end = replay.end();
            assert_eq!(end.records, records);
            let good = end.torn.map_or(bytes.len(), |torn| torn.offset);
            let Some(mut ledger) = end.ledger else { return assert_eq!(records, 0) };
            assert_eq!(ledger.segment(), (1, good));
            // What is taken goes on.
            let next = ledger.append(&node, UnixTime(0), &[reading(u64::MAX)]);
            let whole = [&bytes[..good], &next.bytes].concat();
            let mut replay = Replay::new(node.public());
            assert!(next.begins || replay.segment(1, &whole, true, |_, _| ()).is_ok());
        }
    }
}

pub fn segment_seeds() -> Vec<Vec<u8>> {
    let node = node();
    let mut ledger = Ledger::new(LedgerId([4; 16]), node.public());
    let mut bytes = Vec::new();
    let mut seeds = Vec::new();
    for count in 1..4 {
        bytes.extend(ledger.append(&node, UnixTime(count), &[reading(count)]).bytes);
        seeds.push(bytes.clone());
    }
    seeds
}

pub fn receipt(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match Receipt::parse(text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(receipt) => {
            let again = receipt.to_text();
            assert!(again.len() <= TEXT_LENGTH_MAX);
            assert_eq!(Receipt::parse(&again), Ok(receipt.clone()));
            let stranger = SecretKey::from_seed(&Seed::from([9; 32])).public();
            assert!(receipt.verify(&stranger).is_err());
        }
    }
}

pub fn receipt_seeds() -> Vec<Vec<u8>> {
    let node = node();
    let mut ledger = Ledger::new(LedgerId([4; 16]), node.public());
    let mut records = Vec::new();
    for count in 1..4 {
        records.extend(ledger.append(&node, UnixTime(count), &[reading(count)]).records);
    }
    let receipt = Receipt::make(&node, ledger.id(), UnixTime(5), records);
    vec![receipt.expect("three records of one principal").to_text().into_bytes()]
}
