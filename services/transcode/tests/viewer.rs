//! The page in headless Chromium, against a server that speaks as the module does: the page of a
//! test holds the viewer in a frame, works its controls as a hand does, looks at its canvas, and
//! says what it saw. Nothing is measured; each step waits for what has to come.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

mod canned;

/// The names that browsers of this kind have.
const BROWSERS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// When nothing is said for so long the browser has failed: its start takes a few seconds on a
/// machine that does much else, and each step some tenths of one.
const TIME_MAX: Duration = Duration::from_secs(120);

/// Works the page. `step` says what it did, or why it could not.
const TEST_PAGE: &str = include_str!("viewer.html");

/// What the test's page says at the end when all is well, a line for each step.
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

/// Says why the test is none; the run that counts skips reads it.
fn skip(why: &str) {
    let line = format!("the viewer in a browser: {why}");
    println!("skipped: {line}");
    if let Some(file) = std::env::var_os("TAM_SKIPS") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
        writeln!(file, "{line}").unwrap();
    }
}

/// A browser of its own, with all its processes and its folder until it is dropped.
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
            // Root has no sandbox; the only page is ours.
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
        // What is gone needs no signal.
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
