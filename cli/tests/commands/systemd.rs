//! Notifications to a service manager.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

#[test]
fn a_node_that_cannot_start_tells_the_service_manager_why() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let file = folder.path().join("edge.toml");
    std::fs::write(&file, "name = \"edge\"\nfast_pth = \"auto\"\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tam"))
        .args(["node", "--config", file.to_str().unwrap()])
        .env("NOTIFY_SOCKET", &socket)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let mut bytes = [0; 4096];
    let length = manager.recv(&mut bytes).unwrap();
    let message = std::str::from_utf8(&bytes[..length]).unwrap();
    assert!(message.starts_with("STATUS="), "{message}");
    assert!(message.contains("fast_pth"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}
