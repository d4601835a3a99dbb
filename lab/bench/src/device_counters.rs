//! Counters of network devices, read from the text of `/proc/net/dev`.

/// Returns a column of a device's line: bytes and packets received are 0 and 1, sent 8 and 9.
pub(crate) fn column(text: &str, device: &str, at: usize) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))?;
    line.split_whitespace().nth(at)?.parse().ok()
}
