//! Icecast, with a station that sends its stream to it.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use namespaces::netns::NetNs;

use crate::streams::process::{ICECAST, Process};
use crate::streams::{PROXY, within};

const PORT: u16 = 8000;
/// Password of the station, for this run only.
pub(super) const PASSWORD: &str = "station";
/// Most listeners: more than come.
const CLIENTS_MAX: u32 = 8000;
/// Burst of a new listener in bytes: 4 s at 128 kbit/s, as the node's.
const BURST: u32 = 65_536;
/// Buffer for slow listeners in bytes, as the node's.
const QUEUE: u32 = 1 << 20;

/// User and group id without rights.
const NOBODY: u32 = 65_534;

pub(super) fn at() -> Result<SocketAddr> {
    Ok(format!("{PROXY}:{PORT}").parse()?)
}

pub(super) fn start(place: (&NetNs, usize), folder: &Path) -> Result<Process> {
    let folder = within(folder, "icecast")?;
    let file = folder.join("icecast.xml");
    std::fs::write(&file, configuration(&folder)).context("writing Icecast's configuration")?;
    // Icecast does not run as root; its user has to own the logs.
    for path in [&folder, &within(&folder, "log")?] {
        std::os::unix::fs::chown(path, Some(NOBODY), None).context("giving Icecast its folder")?;
    }
    let parent = folder.parent().unwrap_or(&folder);
    let all_may_pass = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(parent, all_may_pass).context("opening the run's folder")?;
    let arguments = ["-c", &file.display().to_string()];
    let process = Process::start_as(Some(NOBODY), ICECAST, &arguments, place, &folder)?;
    process.listens(place.0, at()?)
}

fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "<icecast>
  <location>lab</location><admin>nobody@localhost</admin><hostname>localhost</hostname>
  <limits>
    <clients>{CLIENTS_MAX}</clients><sources>2</sources><queue-size>{QUEUE}</queue-size>
    <client-timeout>30</client-timeout><header-timeout>15</header-timeout>
    <source-timeout>15</source-timeout>
    <burst-on-connect>1</burst-on-connect><burst-size>{BURST}</burst-size>
  </limits>
  <authentication>
    <source-password>{PASSWORD}</source-password><relay-password>{PASSWORD}</relay-password>
    <admin-user>admin</admin-user><admin-password>{PASSWORD}</admin-password>
  </authentication>
  <listen-socket><port>{PORT}</port></listen-socket>
  <paths>
    <basedir>{folder}</basedir><logdir>{folder}/log</logdir>
    <webroot>{folder}</webroot><adminroot>{folder}</adminroot>
  </paths>
  <logging><accesslog>access.log</accesslog><errorlog>error.log</errorlog><loglevel>2</loglevel>
  </logging>
  <security><chroot>0</chroot></security>
</icecast>
"
    )
}
