//! Handshakes and traffic of two nodes without sockets: two tables of associations in one thread.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use association::packet::{OVERHEAD, PAYLOAD_AT};
use association::{Associations, Budget, Config, Effect, Established, Peer, Protection, Role};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use trust::{SecretKey, Seed};
use units::Nanos;

/// Interval between two handshakes by the tables' clock, long enough that no limit for strangers is
/// met.
const PACE: Nanos = Nanos::from_millis(50);
/// Side of a handshake, with the time that it has worked.
struct Side {
    table: Associations,
    address: SocketAddr,
    worked: Duration,
}

/// Datagrams that a side sends, and its association once there is one.
type Progress = (Vec<Vec<u8>>, Option<Established>);

impl Side {
    fn new(number: u8) -> Result<Self> {
        let key = SecretKey::from_seed(&Seed::from([number; 32]));
        let config = Config { key, token: String::new(), budget: Budget(u32::MAX) };
        let table = Associations::new(Nanos(1), config, &mut draw).context("making a table")?;
        let address = SocketAddr::from((Ipv4Addr::new(10, 202, 0, number), 3322));
        Ok(Self { table, address, worked: Duration::ZERO })
    }

    /// Runs an action on the table and adds its time to the side's.
    fn work(
        &mut self,
        act: impl FnOnce(&mut Associations) -> Result<Vec<Effect>>,
    ) -> Result<Progress> {
        let begun = Instant::now();
        let effects = act(&mut self.table);
        self.worked += begun.elapsed();
        let (mut sent, mut established) = (Vec::new(), None);
        for effect in effects? {
            match effect {
                Effect::Send { datagram, .. } => sent.push(datagram),
                Effect::Established(new) => established = Some(*new),
                Effect::Ended { .. } => {}
            }
        }
        Ok((sent, established))
    }
}

fn draw(into: &mut [u8]) {
    // Without randomness there is nothing to measure.
    getrandom::fill(into).expect("the kernel gives random bytes");
}

/// Returns the time that initiator and responder work for `count` handshakes.
pub(super) fn handshakes(count: u32) -> Result<[Duration; 2]> {
    let (mut asks, mut answers) = (Side::new(1)?, Side::new(2)?);
    let mut now = Nanos(1);
    for _ in 0..count {
        now += PACE;
        let [hers, his] = handshake(now, &mut asks, &mut answers)?;
        // Ended outside of the measured time.
        asks.table.end(hers.id);
        answers.table.end(his.id);
    }
    Ok([asks.worked, answers.worked])
}

/// Returns the time to seal and the time to open `count` encrypted datagrams of `length` bytes.
pub(super) fn sealing(length: usize, count: u32) -> Result<[Duration; 2]> {
    let [hers, his] = handshake(Nanos(1), &mut Side::new(1)?, &mut Side::new(2)?)?;
    let ((_, mut sealer), (mut opener, _)) = (hers.traffic.split(), his.traffic.split());
    let mut datagram = vec![0; OVERHEAD + length];
    let [mut sealing, mut opening] = [Duration::ZERO; 2];
    for _ in 0..count {
        datagram[PAYLOAD_AT] = 1;
        let begun = Instant::now();
        sealer.seal(Protection::Encrypted, Role::Call, &[7; 32], &mut datagram)?;
        let sealed = Instant::now();
        let opened = opener.open(&mut datagram).map_err(|refused| anyhow!("{refused:?}"))?;
        opening += sealed.elapsed();
        sealing += sealed - begun;
        ensure!(opened.payload.first() == Some(&1), "it was opened wrongly");
    }
    Ok([sealing, opening])
}

fn handshake(now: Nanos, asks: &mut Side, answers: &mut Side) -> Result<[Established; 2]> {
    let peer = Peer { address: answers.address, principal: None };
    let (sent, _) = asks.work(|table| Ok(table.connect(now, peer, &mut draw)?.1))?;
    // Datagrams in flight: true for one to the responder, false for one to the initiator.
    let mut on_the_way: VecDeque<(bool, Vec<u8>)> = sent.into_iter().map(|it| (true, it)).collect();
    let mut known = [None, None];
    while let Some((to_answerer, datagram)) = on_the_way.pop_front() {
        let (side, from) = match to_answerer {
            true => (&mut *answers, asks.address),
            false => (&mut *asks, answers.address),
        };
        let (sent, established) =
            side.work(|table| Ok(table.handle(now, from, &datagram, &mut draw)))?;
        on_the_way.extend(sent.into_iter().map(|datagram| (!to_answerer, datagram)));
        let id = &mut known[usize::from(to_answerer)];
        *id = established.or(id.take());
    }
    match known {
        [Some(hers), Some(his)] => Ok([hers, his]),
        _ => bail!("a handshake failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_work_for_each_handshake() {
        let worked = handshakes(3).unwrap();
        assert!(worked.iter().all(|time| !time.is_zero()), "{worked:?}");
    }
    #[test]
    fn sealed_packets_are_opened_by_the_other_side() {
        let took = sealing(64, 3).unwrap();
        assert!(took.iter().all(|time| !time.is_zero()), "{took:?}");
    }
}
