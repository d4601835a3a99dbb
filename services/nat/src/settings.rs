//! Settings of the operator. Texts are parsed once, at the start.

use tam::prefix::Prefixes;

use crate::mappings::{BUCKET, PORTS_MAX};

/// Limit of prefixes in `inside`.
const PREFIXES_MAX: usize = 8;
/// First port that may be mapped: lower ones are system ports (RFC 6335).
const PORT_MIN: u16 = 1024;
/// Lower limits of timeouts, in seconds: RFC 4787 REQ-5, RFC 5382 REQ-5, RFC 5508 REQ-2.
const UDP_MIN: u16 = 120;
const TCP_MIN: u32 = 7440;
const ICMP_MIN: u16 = 60;

/// Codes with which `on_start` refuses.
pub mod refuse {
    /// The parameter `inside` is no list of 1 to 8 prefixes.
    pub const INSIDE: u16 = 1;
    /// `address` is missing, or is inside.
    pub const ADDRESS: u16 = 2;
    /// `first_port` to `last_port` are not 32 to 32,768 ports from 1024.
    pub const PORTS: u16 = 3;
    /// A timeout is shorter than the RFC allows.
    pub const TIMEOUT: u16 = 4;
}

/// Settings of the operator.
pub struct Settings {
    pub address: u32,
    inside: Prefixes<u32, PREFIXES_MAX>,
    pub first_port: u16,
    /// Number of ports, a multiple of [`BUCKET`].
    pub ports: usize,
    pub local: bool,
    pub udp_ms: u64,
    pub tcp_ms: u64,
    pub icmp_ms: u64,
}

impl Settings {
    pub const fn new() -> Self {
        Self {
            address: 0,
            inside: Prefixes::NONE,
            first_port: 32_768,
            ports: PORTS_MAX,
            local: true,
            udp_ms: 300_000,
            tcp_ms: 7_440_000,
            icmp_ms: 60_000,
        }
    }

    pub fn from_parameters() -> Result<Self, u16> {
        let mut settings = Self::new();
        let inside = tam::parameter::<tam::Text>("inside").ok_or(refuse::INSIDE)?;
        let count = settings.inside.read(inside.as_str());
        count.filter(|count| *count > 0).ok_or(refuse::INSIDE)?;
        let address = tam::parameter::<[u8; 4]>("address").ok_or(refuse::ADDRESS)?;
        settings.address = u32::from_be_bytes(address);
        if settings.is_inside(settings.address) {
            return Err(refuse::ADDRESS);
        }
        settings.read_ports()?;
        settings.local = tam::parameter("local").unwrap_or(true);
        let udp = tam::parameter("udp_timeout").unwrap_or(300_u16);
        let tcp = tam::parameter("tcp_timeout").unwrap_or(TCP_MIN);
        let icmp = tam::parameter("icmp_timeout").unwrap_or(ICMP_MIN);
        if udp < UDP_MIN || tcp < TCP_MIN || icmp < ICMP_MIN {
            return Err(refuse::TIMEOUT);
        }
        (settings.udp_ms, settings.icmp_ms) = (u64::from(udp) * 1000, u64::from(icmp) * 1000);
        settings.tcp_ms = u64::from(tcp) * 1000;
        Ok(settings)
    }

    /// Reads the port range: an even number of ports from an even one, so that a bucket has both
    /// parities; a rest at the end is not used.
    fn read_ports(&mut self) -> Result<(), u16> {
        let first = tam::parameter("first_port").unwrap_or(32_768_u16);
        let last = tam::parameter("last_port").unwrap_or(u16::MAX);
        if first < PORT_MIN || last < first {
            return Err(refuse::PORTS);
        }
        self.first_port = first + (first & 1);
        let count = (usize::from(last) + 1).saturating_sub(usize::from(self.first_port));
        self.ports = count / BUCKET * BUCKET;
        let fits = (BUCKET..=PORTS_MAX).contains(&self.ports);
        if fits { Ok(()) } else { Err(refuse::PORTS) }
    }

    pub fn is_inside(&self, address: u32) -> bool {
        self.inside.contains(address)
    }
}
