//! Messages for a user without rights.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use testkit::{root_or_skip, tam};

/// User and group id of "nobody".
const NOBODY: u32 = 65_534;

#[test]
fn a_node_without_rights_says_what_it_needs() {
    if !root_or_skip("rights") {
        return;
    }
    // A folder that the user "nobody" cannot read.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("tam");
    std::fs::copy(tam(), &program).unwrap();
    let config = folder.path().join("node.toml");
    std::fs::write(&config, "name = \"tt-sys-rights\"\n").unwrap();

    let mut command = Command::new(&program);
    command.uid(NOBODY).gid(NOBODY).args(["node", "--json", "--config"]).arg(&config);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["error"]["code"], "unsupported", "{document:#}");
    let help = document["error"]["help"].as_str().unwrap();
    assert!(help.contains("root") && help.contains("tam doctor"), "{document:#}");

    let mut command = Command::new(&program);
    let output = command.uid(NOBODY).gid(NOBODY).args(["doctor", "--json"]).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rights = document["checks"]
        .as_array()
        .and_then(|checks| checks.iter().find(|check| check["name"] == "rights"))
        .unwrap_or_else(|| panic!("{document:#}"));
    assert_eq!(rights["state"], "missing", "{rights:#}");
}
