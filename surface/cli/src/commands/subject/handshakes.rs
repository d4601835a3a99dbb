//! Nodes that get to know each other, without sockets: two tables of associations in one thread.

use anyhow::{Context as _, Result, ensure};
use association::{AssociationId, Associations, Budget, Config, Effect, Peer};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use trust::{SecretKey, Seed};
use units::Nanos;

/// Between two, by the tables' clock: no limit for strangers is met.
const PACE: Nanos = Nanos::from_millis(50);
/// One side, and how long it has worked.
struct Side {
    table: Associations,
    address: SocketAddr,
    worked: Duration,
}

/// What a side wants sent, and whether it has an association by now.
type Done = (Vec<Vec<u8>>, Option<AssociationId>);

impl Side {
    fn new(number: u8) -> Result<Self> {
        let key = SecretKey::from_seed(&Seed::from([number; 32]));
        let config = Config { key, token: String::new(), budget: Budget(u32::MAX) };
        let table = Associations::new(Nanos(1), config, &mut draw).context("making a table")?;
        let address = SocketAddr::from((Ipv4Addr::new(10, 202, 0, number), 3322));
        Ok(Self { table, address, worked: Duration::ZERO })
    }

    /// Has the table do something, and looks at the clock.
    fn work(&mut self, act: impl FnOnce(&mut Associations) -> Result<Vec<Effect>>) -> Result<Done> {
        let begun = Instant::now();
        let effects = act(&mut self.table);
        self.worked += begun.elapsed();
        let (mut sent, mut established) = (Vec::new(), None);
        for effect in effects? {
            match effect {
                Effect::Send { datagram, .. } => sent.push(datagram),
                Effect::Established(new) => established = Some(new.id),
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

/// How long each side worked for so many handshakes: who asks, and who answers.
pub(super) fn handshakes(count: u32) -> Result<[Duration; 2]> {
    let (mut asks, mut answers) = (Side::new(1)?, Side::new(2)?);
    let mut now = Nanos(1);
    for _ in 0..count {
        now += PACE;
        handshake(now, &mut asks, &mut answers)?;
    }
    Ok([asks.worked, answers.worked])
}

fn handshake(now: Nanos, asks: &mut Side, answers: &mut Side) -> Result<()> {
    let peer = Peer { address: answers.address, principal: None };
    let (sent, _) = asks.work(|table| Ok(table.connect(now, peer, &mut draw)?.1))?;
    // To whom a datagram goes: to who answers, or to who asks.
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
        *id = established.or(*id);
    }
    ensure!(known.iter().all(Option::is_some), "a handshake came to nothing");
    // Taken down outside of what is measured.
    for (side, id) in [(asks, known[0]), (answers, known[1])] {
        id.into_iter().for_each(|id| drop(side.table.end(id)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_work_for_each_handshake() {
        let worked = handshakes(3).unwrap();
        assert!(worked.iter().all(|time| !time.is_zero()), "{worked:?}");
    }
}
