//! Runner of the workspace's test programs: one build by Cargo, then several programs at a time.
//!
//! `cargo test` runs one program after the other, and most of ours keep one core busy. A program's
//! output is printed in one piece when it ends, and only the sums of one that passed. It knows
//! nothing about what a test needs; tools/test.sh prepares that.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::cargo;

/// Folder of the system tests: they start nodes, so tools/test.sh runs them by themselves.
const SYSTEM: &str = "lab/system";
/// Least time of a test that is worth a line although it passed.
const SLOW: Duration = Duration::from_secs(2);

/// Test program that Cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Folder of its package, where it runs.
    pub folder: PathBuf,
    /// Target that it was made of, as Cargo calls it: `node` or `properties`.
    pub target: String,
    pub executable: PathBuf,
}

/// Result of a run of test programs.
#[derive(Debug, Default)]
pub struct Outcome {
    pub programs: usize,
    /// Programs that ended with a failure, by folder and target.
    pub failed: Vec<String>,
}

/// Builds the test programs of the workspace, and lists them without the system tests.
///
/// The whole workspace is built, because a selection of packages resolves other features, and
/// builds the dependencies again for them.
pub fn build(root: &Path) -> anyhow::Result<Vec<Program>> {
    let output = cargo(root)
        .args(["test", "--release", "--workspace", "--quiet"])
        .args(["--lib", "--bins", "--tests", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo test --no-run")?;
    ensure!(output.status.success(), "the test programs could not be built");
    let messages = String::from_utf8(output.stdout).context("reading what cargo printed")?;
    let mut programs = programs(&messages)?;
    programs.retain(|program| !program.folder.ends_with(SYSTEM));
    Ok(programs)
}

/// Runs test programs, `jobs` at a time, and prints what they say.
///
/// `runner` is the command line that stands before each program: `sudo -n`, or nothing.
pub fn run(programs: &[Program], jobs: usize, runner: &[String]) -> anyhow::Result<Outcome> {
    let next = AtomicUsize::new(0);
    let outcome = Mutex::new(Outcome { programs: programs.len(), ..Outcome::default() });
    std::thread::scope(|scope| {
        let worker = || -> anyhow::Result<()> {
            while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let begin = Instant::now();
                let (passed, said) = run_one(program, runner)?;
                let mut outcome = outcome.lock().expect("no holder panics");
                print!("{}", report(program, passed, &said, begin.elapsed()));
                if !passed {
                    outcome.failed.push(program.name());
                }
            }
            Ok(())
        };
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .try_for_each(|it| it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(outcome.into_inner().expect("no holder panics"))
}

/// Returns the number of programs that run at the same time: one for each processor.
pub fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failed.len();
        writeln!(f, "{} test programs, {failed} of them with failures", self.programs)?;
        self.failed.iter().try_for_each(|name| writeln!(f, "failed: {name}"))
    }
}

impl Program {
    /// Returns the names by which a person finds it: its package's folder and its target.
    fn name(&self) -> String {
        let parts: Vec<_> = self.folder.components().rev().take(2).collect();
        let folder: PathBuf = parts.into_iter().rev().collect();
        format!("{}: {}", folder.display(), self.target)
    }
}

/// Runs one program to its end: whether it passed, and all that it printed.
fn run_one(program: &Program, runner: &[String]) -> anyhow::Result<(bool, String)> {
    let mut words = runner.to_vec();
    // Lets this version of the test library print the time of each test. A command of its own, so
    // that Cargo does not see the variable: build scripts would run again.
    words.extend(["env", "RUSTC_BOOTSTRAP=1"].map(str::to_owned));
    let (first, rest) = words.split_first().expect("env is there");
    let (mut reader, writer) = std::io::pipe().context("making a pipe")?;
    let mut child = Command::new(first)
        .args(rest)
        .arg(&program.executable)
        .args(["-Zunstable-options", "--report-time"])
        .current_dir(&program.folder)
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("copying a pipe's end")?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("starting {}", program.executable.display()))?;
    let mut said = Vec::new();
    reader.read_to_end(&mut said).context("reading what a test program prints")?;
    let status = child.wait().context("waiting for a test program")?;
    Ok((status.success(), String::from_utf8_lossy(&said).into_owned()))
}

/// Returns the lines about a program that ended: everything of one that failed, else its sums, its
/// slow tests and those that it did not run.
fn report(program: &Program, passed: bool, said: &str, took: Duration) -> String {
    let head = format!("== {}, {:.1} s\n", program.name(), took.as_secs_f64());
    if !passed {
        return format!("{head}{said}\n");
    }
    let kept = said.lines().filter(|line| {
        line.starts_with("test result: ")
            || line.contains(" ... ignored")
            || seconds(line).is_some_and(|it| it >= SLOW.as_secs_f64())
    });
    kept.fold(head, |text, line| text + line + "\n")
}

/// Reads the time at the end of a test's line: `test name ... ok <2.178s>`.
fn seconds(line: &str) -> Option<f64> {
    line.strip_prefix("test ")?.strip_suffix("s>")?.rsplit_once(" <")?.1.parse().ok()
}

/// Reads the test programs out of Cargo's messages, in Cargo's order.
fn programs(messages: &str) -> anyhow::Result<Vec<Program>> {
    #[derive(Deserialize)]
    struct Message {
        reason: String,
        manifest_path: Option<PathBuf>,
        target: Option<Target>,
        profile: Option<Profile>,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    let mut found = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line)
            .with_context(|| format!("a message of cargo that is none: {line}"))?;
        let (Some(manifest), Some(target), Some(profile), Some(executable)) =
            (message.manifest_path, message.target, message.profile, message.executable)
        else {
            continue;
        };
        if message.reason == "compiler-artifact" && profile.test {
            let folder = manifest.parent().context("a manifest lies in a folder")?.to_owned();
            found.push(Program { folder, target: target.name, executable });
        }
    }
    Ok(found)
}

/// Keeps the programs of these folders' packages.
pub fn of_packages(programs: Vec<Program>, folders: &BTreeSet<PathBuf>) -> Vec<Program> {
    programs.into_iter().filter(|program| folders.contains(&program.folder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        Program {
            folder: "/p/core/node".into(),
            target: "properties".into(),
            executable: "/p/target/release/deps/properties-1".into(),
        }
    }

    #[test]
    fn test_programs_are_read_from_cargos_messages_and_other_artifacts_are_not() {
        let artifact = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"x","manifest_path":"/p/core/node/Cargo.toml","target":{{"name":"properties","kind":["test"]}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let executable = r#""/p/target/release/deps/properties-1""#;
        let messages = [
            artifact(true, executable),
            artifact(false, executable),
            artifact(true, "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ]
        .join("\n");
        assert_eq!(programs(&messages).unwrap(), [program()]);
        assert!(programs("{\"reason\":").is_err());
    }

    #[test]
    fn of_a_program_that_passed_only_sums_slow_tests_and_ignored_ones_are_printed() {
        let said = "running 3 tests\ntest a ... ok <0.010s>\ntest b ... ok <2.178s>\ntest c ... \
                    ignored\n\ntest result: ok. 2 passed; 0 failed; 1 ignored\n";
        let text = report(&program(), true, said, Duration::from_millis(2_300));
        let lines: Vec<&str> = text.lines().collect();
        let expected = [
            "== core/node: properties, 2.3 s",
            "test b ... ok <2.178s>",
            "test c ... ignored",
            "test result: ok. 2 passed; 0 failed; 1 ignored",
        ];
        assert_eq!(lines, expected);
        assert!(report(&program(), false, said, Duration::ZERO).contains(said));
    }

    #[test]
    fn each_program_runs_once_and_a_failure_has_its_name() {
        let at = |path: &str| Program { executable: path.into(), folder: "/".into(), ..program() };
        let outcome = run(&[at("/bin/true"), at("/bin/false"), at("/bin/true")], 2, &[]).unwrap();
        assert_eq!((outcome.programs, outcome.failed.len()), (3, 1));
        let missing = run(&[at("/nowhere")], 1, &[]).unwrap();
        assert_eq!(missing.failed.len(), 1, "env says that there is none");
    }
}
