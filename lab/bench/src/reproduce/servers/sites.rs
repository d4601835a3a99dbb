//! Web servers of a run: distance, rate and page of each. The same each time.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use units::BitsPerSecond;

use crate::compress::text::{self, Random};

/// Times of round trips of the clouds of servers, in milliseconds.
pub(super) const CLOUDS: [u32; 4] = [10, 40, 100, 200];
/// Largest deviation of a server from its cloud's round trip, as a share of that.
const CLOUD_SPREAD: f64 = 0.15;
/// Page lengths in bytes, spread evenly over powers of ten.
const LENGTHS: Range<f64> = 2e3..6e4;
/// Rates of servers far below the paper's 800 kbit/s, and of the others, in bit/s.
const SLOW: Range<f64> = 8e3..3e4;
const FAST: Range<f64> = 4e5..8e5;
/// Share of slow servers; nearly all simultaneous connections are theirs.
const SLOW_SHARE: f64 = 0.65;
/// Number of the first server, whose address ends in 1.0; those of others follow it.
const NUMBER_FIRST: u16 = 256;
/// Bit of an address that bypasses the service.
const PLAIN: u16 = 1 << 15;
/// Most servers that have an address.
pub(super) const SITES_MAX: usize = 20_000;
const _: () = assert!(SITES_MAX + NUMBER_FIRST as usize <= PLAIN as usize);
const PORT: u16 = 80;
const SEED: u64 = 6;

/// Path to a server: each has an address for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// Path through the service.
    Compressed,
    Plain,
}

impl Variant {
    pub(super) const BOTH: [Self; 2] = [Self::Compressed, Self::Plain];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Compressed => "compressed",
            Self::Plain => "plain",
        }
    }
}

/// A web server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Site {
    /// Index in [`CLOUDS`].
    pub(super) cloud: usize,
    pub(super) round_trip: Duration,
    pub(super) rate: BitsPerSecond,
    /// Contents of its index.html.
    pub(super) page: Vec<u8>,
}

impl Site {
    /// Returns true if it is one of the paper's slow servers.
    pub(super) fn is_slow(&self) -> bool {
        (self.rate.0 as f64) < SLOW.end
    }
}

/// Returns `count` servers, none of which takes longer than `time_max` for its page alone: a slow
/// one has a smaller page, so that a run ends.
pub(super) fn sites(count: usize, time_max: Duration) -> Vec<Site> {
    let mut random = Random(SEED);
    (0..count.min(SITES_MAX)).map(|number| site(&mut random, number, time_max)).collect()
}

fn site(random: &mut Random, number: usize, time_max: Duration) -> Site {
    let cloud = random.below(CLOUDS.len() as u64) as usize;
    let middle = CLOUDS.get(cloud).copied().map_or(0.0, f64::from) / 1e3;
    let spread = CLOUD_SPREAD * (2.0 * random.fraction() - 1.0);
    let rate = match random.fraction() < SLOW_SHARE {
        true => between(&SLOW, random.fraction()),
        false => between(&FAST, random.fraction()),
    };
    let longest = LENGTHS.end.min(time_max.as_secs_f64() * rate / 8.0);
    let length = between(&(LENGTHS.start..longest), random.fraction());
    Site {
        cloud,
        round_trip: Duration::from_secs_f64(middle * (1.0 + spread)),
        rate: BitsPerSecond(rate as u64),
        page: text::html_of(number as u64 + 1, length as usize),
    }
}

/// Returns the value at a fraction of a range on a logarithmic scale.
fn between(range: &Range<f64>, fraction: f64) -> f64 {
    range.start * (range.end / range.start).powf(fraction)
}

/// Returns the address of a server on a path.
pub(super) fn address(number: usize, way: Variant) -> SocketAddr {
    let way = match way {
        Variant::Compressed => 0,
        Variant::Plain => PLAIN,
    };
    let [high, low] = ((number.min(SITES_MAX) as u16 + NUMBER_FIRST) | way).to_be_bytes();
    SocketAddr::from(([10, 203, high, low], PORT))
}

/// Returns the number of the server with this address.
pub(super) fn number(address: Ipv4Addr) -> Option<usize> {
    let [10, 203, high, low] = address.octets() else { return None };
    let place = u16::from_be_bytes([high, low]) & !PLAIN;
    place.checked_sub(NUMBER_FIRST).map(usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_the_same_each_time_and_as_the_paper_says_of_them() {
        let time_max = Duration::from_secs(20);
        let all = sites(300, time_max);
        assert_eq!(all, sites(300, time_max));
        let slow = all.iter().filter(|site| site.is_slow()).count();
        assert!((170..220).contains(&slow), "{slow}");
        for site in &all {
            let milliseconds = site.round_trip.as_secs_f64() * 1e3;
            let middle = f64::from(CLOUDS[site.cloud]);
            assert!((milliseconds / middle - 1.0).abs() <= CLOUD_SPREAD, "{milliseconds}");
            assert!((8_000..=800_000).contains(&site.rate.0), "{:?}", site.rate);
            let took = site.page.len() as f64 * 8.0 / site.rate.0 as f64;
            assert!(took <= time_max.as_secs_f64() + 0.01, "{took}");
            assert!((2_000..=60_000).contains(&site.page.len()), "{}", site.page.len());
        }
        for cloud in 0..CLOUDS.len() {
            let of_cloud = all.iter().filter(|site| site.cloud == cloud).count();
            assert!((50..100).contains(&of_cloud), "{of_cloud}");
        }
        assert_ne!(all[0].page[..1000], all[1].page[..1000]);
    }

    #[test]
    fn servers_have_an_address_for_both_paths() {
        for at in [0, 1, 255, 256, 999, SITES_MAX - 1] {
            for way in Variant::BOTH {
                let SocketAddr::V4(address) = address(at, way) else { panic!("no IPv4") };
                assert_eq!(number(*address.ip()), Some(at));
                assert_eq!(address.ip().octets()[2] >= 128, way == Variant::Plain);
            }
        }
        assert_eq!(number(Ipv4Addr::new(10, 203, 0, 9)), None);
        assert_eq!(number(Ipv4Addr::new(10, 201, 1, 0)), None);
    }
}
