//! Machine that a figure belongs to: an absolute value never stands alone.

use std::fmt;

use serde::Serialize;

/// Description of the measuring machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Kernel release.
    pub(crate) kernel: String,
    /// CPU model.
    pub(crate) cpu: String,
    /// Vendor and family, as in `/proc/cpuinfo`.
    pub(crate) cpu_family: String,
    /// Number of online CPUs.
    pub(crate) cores: usize,
    /// Driver of the devices.
    pub(crate) driver: String,
    /// Load average of one minute before the run; 0 on an idle machine.
    pub(crate) load: f64,
}

impl Machine {
    /// Reads the description from the kernel; missing values are `unknown`.
    pub(crate) fn read(driver: &str) -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            cpuinfo
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.trim() == name)
                .map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
        };
        Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpu: field("model name"),
            cpu_family: format!("{}/{}", field("vendor_id"), field("cpu family")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            driver: driver.to_owned(),
            load: std::fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|text| text.split_whitespace().next()?.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, cpu, cores, driver, .. } = self;
        write!(f, "Linux {kernel}, {cpu}, {cores} cores, driver {driver}")
    }
}
