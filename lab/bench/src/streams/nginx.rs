//! nginx, as the origin and as a proxy.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use namespaces::netns::NetNs;

use super::process::{NGINX, Process};
use super::{LOAD_CPU, ORIGIN, within};
use crate::line::Line;

/// Connections of the one worker: more than any case has.
const CONNECTIONS_MAX: u32 = 8192;

/// Serves a folder at port 80 of all addresses of a line's far end.
pub(crate) fn origin(line: &Line, folder: &Path, files: &Path) -> Result<Process> {
    let http = format!(
        "sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 100000000; \
         default_type text/html; open_file_cache max=16; \
         server {{ listen 80 backlog=4096; root {}; }}",
        files.display()
    );
    let text = configuration("", &http);
    start(&text, (&line.destination, LOAD_CPU), folder, "origin", ORIGIN.parse()?)
}

/// Returns a configuration with one worker; `main` is put outside of `http`.
pub(crate) fn configuration(main: &str, http: &str) -> String {
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {name};"))
        .concat();
    format!(
        "{main}\ndaemon off; user root; worker_processes 1; pid nginx.pid;\n\
         error_log stderr; worker_rlimit_nofile {limit};\n\
         events {{ worker_connections {CONNECTIONS_MAX}; }}\n\
         http {{ access_log off; {paths} {http} }}\n",
        limit = 2 * CONNECTIONS_MAX + 100,
    )
}

/// Starts nginx on a CPU, and waits until it listens at an address.
pub(crate) fn start(
    configuration: &str,
    place: (&NetNs, usize),
    folder: &Path,
    name: &str,
    listens_at: SocketAddr,
) -> Result<Process> {
    let folder = within(folder, name)?;
    let file = folder.join("nginx.conf");
    std::fs::write(&file, configuration).context("writing nginx's configuration")?;
    let (prefix, file) = (folder.display().to_string(), file.display().to_string());
    let arguments = ["-p", &prefix, "-c", &file, "-e", "stderr"];
    Process::start(NGINX, &arguments, place, &folder)?.listens(place.0, listens_at)
}
