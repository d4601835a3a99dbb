//! Settings of the operator.

/// Codes with which `on_start` refuses.
pub mod refuse {
    /// `threshold` is below 2: half of it would be 0.
    pub const THRESHOLD: u16 = 1;
    /// `hold` is not 1 to 3,600 seconds.
    pub const HOLD: u16 = 2;
    /// `prefix4` is not 1 to 32 bits.
    pub const PREFIX4: u16 = 3;
    /// `prefix6` is not 1 to 64 bits.
    pub const PREFIX6: u16 = 4;
}

/// Longest `hold`, in seconds.
const HOLD_MAX: u16 = 3600;

#[derive(Clone, Copy)]
pub struct Settings {
    /// Threshold in packets per second and prefix.
    pub threshold: u32,
    /// Seconds below half of the threshold until a prefix is let through again.
    pub hold: u16,
    pub prefix4: u8,
    pub prefix6: u8,
}

impl Settings {
    pub const DEFAULT: Self = Self { threshold: 10_000, hold: 10, prefix4: 24, prefix6: 48 };

    pub fn from_parameters() -> Result<Self, u16> {
        let Self { threshold, hold, prefix4, prefix6 } = Self::DEFAULT;
        let settings = Self {
            threshold: tam::parameter("threshold").unwrap_or(threshold),
            hold: tam::parameter("hold").unwrap_or(hold),
            prefix4: tam::parameter("prefix4").unwrap_or(prefix4),
            prefix6: tam::parameter("prefix6").unwrap_or(prefix6),
        };
        match settings {
            Self { threshold: 0..=1, .. } => Err(refuse::THRESHOLD),
            Self { hold, .. } if !(1..=HOLD_MAX).contains(&hold) => Err(refuse::HOLD),
            Self { prefix4, .. } if !(1..=32).contains(&prefix4) => Err(refuse::PREFIX4),
            Self { prefix6, .. } if !(1..=64).contains(&prefix6) => Err(refuse::PREFIX6),
            settings => Ok(settings),
        }
    }
}
