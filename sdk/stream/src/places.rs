//! Hosts and paths that a service handles, as listed in its configuration.

/// Parses path prefixes; `example` is one for the error message.
///
/// # Errors
/// A path does not begin with a slash.
pub fn paths(values: &[&str], example: &str) -> Result<Vec<String>, String> {
    match values.iter().copied().find(|path| !path.starts_with('/')) {
        Some(path) => Err(format!("{path} is no path; one begins with /, as in {example}")),
        None => Ok(owned(values)),
    }
}

/// Parses hosts, names or addresses, with or without a port; returns them in lower case.
#[must_use]
pub fn hosts(values: &[&str]) -> Vec<String> {
    let mut hosts = owned(values);
    hosts.iter_mut().for_each(|host| host.make_ascii_lowercase());
    hosts
}

fn owned(values: &[&str]) -> Vec<String> {
    values.iter().map(|&value| value.to_owned()).collect()
}

/// Returns true if an authority matches one of the hosts, which are in lower case, or if the list
/// is empty. The authority's case is ignored, and so is its port unless the host has one.
#[must_use]
pub fn has_host(hosts: &[String], authority: &str) -> bool {
    let name = match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    };
    let is_it =
        |host: &&str| host.eq_ignore_ascii_case(authority) || host.eq_ignore_ascii_case(name);
    hosts.is_empty() || hosts.iter().map(String::as_str).any(|host| is_it(&host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_compared_without_case_and_port() {
        let hosts = hosts(&["tv.Example", "a.example:81", "[2001:db8::1]"]);
        for (host, expected) in [
            ("tv.example", true),
            ("TV.example:8000", true),
            ("tv.example:x", false),
            ("a.example:81", true),
            ("a.example", false),
            ("a.example:80", false),
            ("[2001:db8::1]", true),
            ("[2001:DB8::1]:80", true),
            ("other.example", false),
            ("", false),
        ] {
            assert_eq!(has_host(&hosts, host), expected, "{host}");
        }
        assert!(has_host(&[], "anything"));
    }

    #[test]
    fn paths_begin_with_a_slash() {
        assert_eq!(paths(&["/live/", "/radio"], "/live/").unwrap(), ["/live/", "/radio"]);
        let refused = paths(&["/a", "live"], "/live/").unwrap_err();
        assert_eq!(refused, "live is no path; one begins with /, as in /live/");
    }
}
