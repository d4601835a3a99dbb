//! Cookies: proof that the initiator receives at its source address, without state about it until
//! then (Photuris, RFC 2522; IKEv2, RFC 7296, section 2.6).

use crate::Random;
use crate::secret::Secret;
use crate::wire::{COOKIE_LENGTH, EPHEMERAL_LENGTH};
use std::net::{IpAddr, SocketAddr};
use units::Nanos;

/// Time for which a secret makes cookies. It verifies them for as long again, so a cookie is valid
/// for between one and two times this.
pub const SECRET_TIME: Nanos = Nanos::from_millis(60_000);

/// Current and previous secret.
pub struct Cookies {
    now: Secret,
    before: Secret,
    next: Nanos,
}

impl Cookies {
    pub fn new(now: Nanos, random: &mut Random) -> Self {
        Self { now: Secret::draw(random), before: Secret::draw(random), next: now + SECRET_TIME }
    }

    /// Replaces the secret when its time is over; both of them after a long silence.
    pub fn rotate(&mut self, now: Nanos, random: &mut Random) {
        if now < self.next {
            return;
        }
        let is_old = now >= self.next + SECRET_TIME;
        let before = std::mem::replace(&mut self.now, Secret::draw(random));
        self.before = if is_old { Secret::draw(random) } else { before };
        self.next = now + SECRET_TIME;
    }

    /// Makes the cookie of an initiator's address and ephemeral key.
    pub fn make(
        &self,
        from: SocketAddr,
        ephemeral: &[u8; EPHEMERAL_LENGTH],
    ) -> [u8; COOKIE_LENGTH] {
        self.now.mac(&bound(from, ephemeral))
    }

    /// Returns true if the cookie was made for this address and key, not long ago.
    pub fn verify(
        &self,
        cookie: &[u8; COOKIE_LENGTH],
        from: SocketAddr,
        ephemeral: &[u8; EPHEMERAL_LENGTH],
    ) -> bool {
        let bytes = bound(from, ephemeral);
        self.now.verify(cookie, &bytes) || self.before.verify(cookie, &bytes)
    }
}

/// Returns the bytes that a cookie authenticates: 16 of address, the port, the ephemeral key.
fn bound(from: SocketAddr, ephemeral: &[u8; EPHEMERAL_LENGTH]) -> [u8; 50] {
    let address = match from.ip().to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut bytes = [0; 50];
    bytes[..16].copy_from_slice(&address.octets());
    bytes[16..18].copy_from_slice(&from.port().to_be_bytes());
    bytes[18..].copy_from_slice(ephemeral);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_for_one_address_one_key_and_two_minutes() {
        let mut byte = 0;
        let mut random = |into: &mut [u8]| {
            byte += 1;
            into.fill(byte);
        };
        let mut cookies = Cookies::new(Nanos(5), &mut random);
        let [here, there] = ["10.0.0.1:7", "10.0.0.1:8"].map(|text| text.parse().unwrap());
        let cookie = cookies.make(here, &[1; 32]);
        assert!(cookies.verify(&cookie, here, &[1; 32]));
        assert!(cookies.verify(&cookie, "[::ffff:10.0.0.1]:7".parse().unwrap(), &[1; 32]));
        assert!(!cookies.verify(&cookie, there, &[1; 32]));
        assert!(!cookies.verify(&cookie, here, &[2; 32]));
        cookies.rotate(SECRET_TIME, &mut random);
        cookies.rotate(SECRET_TIME + Nanos(5), &mut random);
        assert!(cookies.verify(&cookie, here, &[1; 32]));
        cookies.rotate(SECRET_TIME + SECRET_TIME + Nanos(5), &mut random);
        assert!(!cookies.verify(&cookie, here, &[1; 32]));
    }

    #[test]
    fn after_a_long_silence_no_old_cookie_is_accepted() {
        let mut random = |into: &mut [u8]| into.fill(1);
        let mut cookies = Cookies::new(Nanos(0), &mut random);
        let here = "[2001:db8::1]:7".parse().unwrap();
        let cookie = cookies.make(here, &[1; 32]);
        let mut other = |into: &mut [u8]| into.fill(2);
        cookies.rotate(SECRET_TIME + SECRET_TIME, &mut other);
        assert!(!cookies.verify(&cookie, here, &[1; 32]));
    }
}
