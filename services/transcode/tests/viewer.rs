//! Test of the page in headless Chromium, against a server that behaves like the module: the test's
//! page holds the viewer in a frame, operates its controls, checks its canvas, and reports the
//! results. Nothing is measured; each step waits for its condition.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

mod canned;

/// Names of the browser's executables.
const BROWSERS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// Time without a report after which the browser has failed: its start takes a few seconds on a
/// busy machine, and each step some tenths of one.
const TIME_MAX: Duration = Duration::from_secs(120);

/// Page that drives the test. Each `step` reports success, or the reason of a failure.
const TEST_PAGE: &str = include_str!("viewer.html");

/// Steps that the test's page reports at the end on success, one per line.
const STEPS: [&str; 9] = [
    "plays at the size of the address",
    "changes the size while it plays",
    "leaves what was refused as it is, and says why",
    "shows the device's own colours, and only them",
    "shows pages of eight rows in black and white",
    "shows every palette in every layout",
    "says how many are left out for the byte rate",
    "plays JPEGs and changes their size",
    "says what a busy node says",
];

#[test]
fn the_viewer_plays_and_changes_a_stream_in_a_browser() {
    let Some(browser) = browser() else {
        return skip("no Chromium on the path; tools/setup.sh --tests installs it");
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (told, tells) = mpsc::channel();
    let others = move |method: &str, path: &str, body: &str| match (method, path) {
        ("GET", "/test") => Some(("text/html; charset=utf-8", TEST_PAGE.to_owned())),
        ("POST", "/told") => {
            told.send(body.to_owned()).unwrap();
            Some(("text/plain", String::new()))
        }
        _ => None,
    };
    std::thread::spawn(move || canned::serve(listener, Arc::new(others)));
    let _browser = Browser::open(&browser, &format!("http://{address}/test"));
    for (at, step) in STEPS.iter().enumerate() {
        let line = tells.recv_timeout(TIME_MAX).unwrap_or_else(|_| {
            panic!("the browser says nothing behind step {at}, and should say that it {step}");
        });
        assert_eq!(line, *step);
    }
}

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let is_there = |program: &PathBuf| program.is_file();
    BROWSERS.iter().find_map(|name| folders.iter().map(|it| it.join(name)).find(is_there))
}

/// Reports the reason for skipping the test, which the run that counts skips reads.
fn skip(why: &str) {
    let line = format!("the viewer in a browser: {why}");
    println!("skipped: {line}");
    if let Some(file) = std::env::var_os("TAM_SKIPS") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
        writeln!(file, "{line}").unwrap();
    }
}

/// Browser process with all its children and its folder, until it is dropped.
struct Browser {
    process: Child,
    folder: PathBuf,
}

impl Browser {
    fn open(program: &Path, url: &str) -> Self {
        use std::os::unix::process::CommandExt;
        let folder = std::env::temp_dir().join(format!("tam-viewer-{}", std::process::id()));
        let profile = format!("--user-data-dir={}", folder.display());
        let process = Command::new(program)
            // Chromium's sandbox does not work as root; the only page is the test's.
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-extensions", "--disable-background-networking"])
            .args([&profile, "--window-size=1280,900", "--remote-debugging-port=0", url])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        Self { process, folder }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = format!("-{}", self.process.id());
        // A process that is gone needs no signal.
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
