//! Calls of the ethtool ioctl (include/uapi/linux/ethtool.h): one device, one command, one array of
//! words that the kernel reads and fills in.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{Channels, Feature, OffloadError};

/// Request number of the ioctl (include/uapi/linux/sockios.h).
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const GSET: u32 = 0x01;
const GDRVINFO: u32 = 0x03;
const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
const GCHANNELS: u32 = 0x3c;
/// String set that names the features.
const SS_FEATURES: u32 = 4;
/// Speed that the driver does not know (`SPEED_UNKNOWN`).
const SPEED_UNKNOWN: u32 = u32::MAX;
/// Length of a string in bytes (`ETH_GSTRING_LEN`).
const STRING_LENGTH: usize = 32;
/// Length of `struct ethtool_drvinfo` in words: 196 bytes, the driver's name in 32 of them from the
/// fourth.
const DRIVER_INFO_WORDS: usize = 49;
/// Length of `struct ethtool_cmd` in words: the lower half of the speed begins the fourth word, the
/// upper half the eighth.
const SETTINGS_WORDS: usize = 11;
/// Length of `struct ethtool_channels` in words.
const CHANNELS_WORDS: usize = 9;
/// Limit of features, which bounds the allocation: a kernel has 64 now.
const FEATURES_MAX: u32 = 1_024;

/// Device by name, with a socket in its namespace.
pub(super) struct Device {
    name: String,
    socket: OwnedFd,
}

impl Device {
    /// Opens a socket for a device; whether the device exists shows with the first command.
    ///
    /// # Errors
    /// The name cannot be a device's.
    pub(super) fn open(name: &str) -> Result<Self, OffloadError> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(OffloadError::Name { device: name.chars().take(64).collect() });
        }
        let socket =
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .map_err(|errno| OffloadError::Refused {
                    action: "open a socket to ask for features",
                    device: name.to_owned(),
                    source: errno.into(),
                })?;
        Ok(Self { name: name.to_owned(), socket })
    }

    /// Returns all features, in the kernel's order.
    pub(super) fn features(&self) -> Result<Vec<Feature>, OffloadError> {
        let names = self.feature_names()?;
        let blocks = names.len().div_ceil(32);
        // cmd, size, then per block of 32: available, requested, active, never changed.
        let mut words = vec![0; 2 + 4 * blocks];
        words[0] = GFEATURES;
        words[1] = blocks as u32;
        self.command("read the features", &mut words)?;
        let bit = |at: usize, field: usize| words[2 + 4 * (at / 32) + field] >> (at % 32) & 1 == 1;
        let feature = |(at, name)| Feature {
            name,
            changeable: bit(at, 0),
            wanted: bit(at, 1),
            active: bit(at, 2),
        };
        Ok(names.into_iter().enumerate().map(feature).collect())
    }

    /// Turns each feature on or off for which `change` returns a value.
    pub(super) fn set_features(
        &self,
        features: &[Feature],
        change: &dyn Fn(&Feature) -> Option<bool>,
    ) -> Result<(), OffloadError> {
        let blocks = features.len().div_ceil(32);
        // cmd, size, then per block of 32: valid, requested.
        let mut words = vec![0; 2 + 2 * blocks];
        words[0] = SFEATURES;
        words[1] = blocks as u32;
        for (at, feature) in features.iter().enumerate() {
            if let (true, Some(on)) = (feature.changeable, change(feature)) {
                let block = 2 + 2 * (at / 32);
                words[block] |= 1 << (at % 32);
                words[block + 1] |= u32::from(on) << (at % 32);
            }
        }
        self.command("set the features", &mut words)
    }

    pub(super) fn channels(&self) -> Result<Channels, OffloadError> {
        let mut words = [0; CHANNELS_WORDS];
        words[0] = GCHANNELS;
        self.command("read the queues", &mut words)?;
        let [_, rx_max, tx_max, _, combined_max, rx, tx, _, combined] = words;
        Ok(Channels {
            rx: rx.saturating_add(combined),
            tx: tx.saturating_add(combined),
            rx_max: rx_max.saturating_add(combined_max),
            tx_max: tx_max.saturating_add(combined_max),
        })
    }

    /// Returns the speed in megabits per second; `None` where the driver does not know it.
    pub(super) fn speed(&self) -> Result<Option<u32>, OffloadError> {
        let mut words = [0; SETTINGS_WORDS];
        words[0] = GSET;
        self.command("read the speed", &mut words)?;
        // Both are 16 bits at the lower address of their word.
        let half = |word: u32| {
            let [low, high, ..] = word.to_ne_bytes();
            u32::from(u16::from_ne_bytes([low, high]))
        };
        let speed = half(words[3]) | half(words[7]) << 16;
        Ok((speed != 0 && speed != SPEED_UNKNOWN).then_some(speed))
    }

    pub(super) fn driver(&self) -> Result<String, OffloadError> {
        let mut words = [0; DRIVER_INFO_WORDS];
        words[0] = GDRVINFO;
        self.command("read the driver", &mut words)?;
        Ok(text(&words[1..=STRING_LENGTH / 4]))
    }

    fn feature_names(&self) -> Result<Vec<String>, OffloadError> {
        // cmd, reserved, a mask of 64 sets, then the count of each set asked for.
        let mut words = [GSSET_INFO, 0, 1 << SS_FEATURES, 0, 0];
        // The mask is a u64 at an offset of eight bytes: on a little-endian machine its low
        // word comes first.
        if cfg!(target_endian = "big") {
            words.swap(2, 3);
        }
        self.command("count the features", &mut words)?;
        let count = words[4].min(FEATURES_MAX);
        // cmd, set, count, then the names. The kernel fills in as many as it just counted: the
        // set is fixed when it is built.
        let name_words = STRING_LENGTH / 4;
        let mut words = vec![0; 3 + name_words * words[4] as usize];
        words[0] = GSTRINGS;
        words[1] = SS_FEATURES;
        words[2] = count;
        self.command("name the features", &mut words)?;
        Ok(words[3..].chunks_exact(name_words).take(count as usize).map(text).collect())
    }

    /// Executes one command. `words` must have room for all that the kernel writes for it.
    fn command(&self, action: &'static str, words: &mut [u32]) -> Result<(), OffloadError> {
        let mut name = [0; libc::IFNAMSIZ];
        for (to, from) in name.iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        let mut request = libc::ifreq {
            ifr_name: name,
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: words.as_mut_ptr().cast() },
        };
        // SAFETY: the socket is open for the whole call; the request is a whole `struct ifreq`
        // whose name ends in a zero byte (`open` checked the length); its pointer is to `words`,
        // which is borrowed mutably for the whole call, aligned as the command's struct is, and
        // by this function's contract as long as what the kernel writes.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
        if result >= 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        let device = self.name.clone();
        match source.raw_os_error() {
            Some(libc::ENODEV) => Err(OffloadError::NoDevice { device }),
            _ => Err(OffloadError::Refused { action, device, source }),
        }
    }
}

/// Returns the text in a field, up to its first zero byte.
fn text(words: &[u32]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
