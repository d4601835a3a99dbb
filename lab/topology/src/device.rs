//! Device names: `to-PEER`, in the kernel's fifteen bytes, the same in every run.

use std::collections::BTreeSet;

/// `IFNAMSIZ` without the final zero byte.
const DEVICE_NAME_LENGTH_MAX: usize = 15;
/// Length of the end of a shortened name: a dash and four hexadecimal digits.
const HASH_LENGTH: usize = 5;

/// Returns a free name for a device towards `peer`, and marks it as taken. A second link to the
/// same peer is `to-PEER+2`.
pub(crate) fn device_name(peer: &str, taken: &mut BTreeSet<String>) -> String {
    let base = format!("to-{peer}");
    let mut name = fit(&base, "");
    let mut number = 1;
    while !taken.insert(name.clone()) {
        number += 1;
        name = fit(&base, &format!("+{number}"));
    }
    name
}

/// Returns a free name for the VLAN device above a device, and marks it as taken.
pub(crate) fn vlan_device_name(device: &str, vlan: u16, taken: &mut BTreeSet<String>) -> String {
    let name = fit(device, &format!(".{vlan}"));
    if taken.insert(name.clone()) {
        return name;
    }
    // Only where a shortened name meets another's hash: then the VLAN's number leads.
    device_name(&format!("v{vlan}-{device}"), taken)
}

/// Concatenates the two; shortens the base and marks it with a hash where the result would be too
/// long.
fn fit(base: &str, suffix: &str) -> String {
    if base.len() + suffix.len() <= DEVICE_NAME_LENGTH_MAX {
        return format!("{base}{suffix}");
    }
    let kept = DEVICE_NAME_LENGTH_MAX.saturating_sub(suffix.len() + HASH_LENGTH);
    // Names are ASCII (`units::Name`), so every byte is a boundary.
    let kept = base.get(..kept).unwrap_or(base);
    format!("{kept}-{:04x}{suffix}", hash(base))
}

/// Returns the FNV-1a hash folded to 16 bits, which is stable across runs and versions.
fn hash(text: &str) -> u16 {
    let hash = text
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash >> 16) as u16 ^ hash as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_differ() {
        let mut taken = BTreeSet::new();
        let long = "a-router-with-a-very-long-name";
        let names: Vec<String> = ["r1", "r1", "r1+2", long, long, "a-router-with-a-very-long-nama"]
            .iter()
            .map(|peer| device_name(peer, &mut taken))
            .collect();
        assert_eq!(&names[..3], ["to-r1", "to-r1+2", "to-r1+2+2"]);
        assert!(names.iter().all(|name| name.len() <= DEVICE_NAME_LENGTH_MAX), "{names:?}");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(names[3].starts_with("to-a-route-"), "{}", names[3]);
    }

    #[test]
    fn a_vlan_device_is_named_after_its_device() {
        let mut taken = BTreeSet::new();
        assert_eq!(vlan_device_name("to-server", 10, &mut taken), "to-server.10");
        let long = vlan_device_name("to-a-rout-1234", 4094, &mut taken);
        assert!(long.len() <= DEVICE_NAME_LENGTH_MAX && long.ends_with(".4094"), "{long}");
        let again = vlan_device_name("to-server", 10, &mut taken);
        assert!(again.len() <= DEVICE_NAME_LENGTH_MAX && again != "to-server.10", "{again}");
    }
}
