//! `tam completions` and `tam man`: the command line's own description, for shells and for people.

use super::Context;
use crate::arguments::Arguments;
use crate::destination;
use crate::failure::{Failure, Outcome};
use api::SCHEMA_VERSION;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use clap_complete::env::Shells;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Arguments of `tam completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell to complete for
    shell: Shell,
}

/// Arguments of `tam man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Write the pages of all commands into this folder, tam.1 first, instead of printing tam(1)
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

impl Completions {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let script = script(self.shell)?;
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "shell": self.shell.to_string(),
            "script": script,
        });
        context.output.result(&document, || script.trim_end().to_owned())
    }
}

impl Man {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let Some(folder) = &self.to else {
            let page = page();
            let document = json!({ "schema_version": SCHEMA_VERSION, "page": page });
            return context.output.result(&document, || page.trim_end().to_owned());
        };
        let files = pages(folder).map_err(|error| {
            Failure::io(format!("writing manual pages to {}", folder.display()), &error)
        })?;
        let document = json!({ "schema_version": SCHEMA_VERSION, "files": files });
        context.output.result(&document, || {
            let folder = folder.display();
            format!("wrote {} pages to {folder}\nnext: man {folder}/tam.1", files.len())
        })
    }
}

/// Returns the registration of `tam` with the shell, which asks it for what completes a word.
fn script(shell: Shell) -> Result<String, Failure> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let known = shells.completer(&name);
    let known =
        known.ok_or_else(|| Failure::failed(format!("completion for {name} is not supported")))?;
    let mut script = Vec::new();
    known
        .write_registration(VARIABLE, "tam", "tam", "tam", &mut script)
        .map_err(|error| Failure::io(format!("writing the script for {name}"), &error))?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Variable of the environment by which a shell asks; that of `clap_complete`.
const VARIABLE: &str = "COMPLETE";

fn page() -> String {
    let mut page = Vec::new();
    // Writing to memory does not fail.
    let _ = clap_mangen::Man::new(Arguments::command()).render(&mut page);
    String::from_utf8_lossy(&page).into_owned()
}

/// Writes a page for each visible command; returns the files, in order.
fn pages(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder)?;
    // Not into the folder itself, which may contain other files.
    let draft = tempfile::Builder::new().prefix(".tam-man-").tempdir_in(folder)?;
    clap_mangen::generate_to(Arguments::command(), draft.path())?;
    let mut names = std::fs::read_dir(draft.path())?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    let mut files = Vec::new();
    for name in names {
        let file = folder.join(&name);
        destination::put(&file, &std::fs::read(draft.path().join(&name))?)?;
        files.push(file);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    /// Returns every visible command with its subcommands: `lab`, `lab-up` and so on.
    fn commands() -> Vec<String> {
        fn add(of: &clap::Command, before: &str, into: &mut Vec<String>) {
            for command in of.get_subcommands().filter(|command| !command.is_hide_set()) {
                let name = format!("{before}{}", command.get_name());
                add(command, &format!("{name}-"), into);
                into.push(name);
            }
        }
        let mut found = Vec::new();
        add(&Arguments::command(), "", &mut found);
        found
    }

    #[test]
    fn every_command_has_its_page_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let theirs = folder.path().join("theirs.1");
        std::fs::write(&theirs, "theirs").unwrap();
        let files = pages(folder.path()).unwrap();
        let mut expected: Vec<PathBuf> = commands()
            .into_iter()
            .map(|name| folder.path().join(format!("tam-{name}.1")))
            .chain([folder.path().join("tam.1")])
            .collect();
        expected.sort();
        let mut found = files.clone();
        found.sort();
        assert_eq!(found, expected);
        let mut left: Vec<PathBuf> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        left.retain(|path| !files.contains(path));
        assert_eq!(left, [theirs], "nothing else is there, and what was is untouched");
        let deploy = std::fs::read_to_string(folder.path().join("tam-deploy.1")).unwrap();
        assert!(deploy.contains("\\-\\-rule"), "{deploy}");
        assert!(page().contains("tam\\-deploy(1)"));
    }

    #[test]
    fn every_shell_asks_for_what_completes_a_word() {
        for shell in Shell::value_variants() {
            let script = script(*shell).unwrap();
            assert!(script.contains(VARIABLE) && script.contains("tam"), "{shell}: {script}");
        }
    }

    #[test]
    fn every_command_is_completed() {
        let mut line = Arguments::command();
        let words = vec!["tam".into(), "".into()];
        let found = clap_complete::engine::complete(&mut line, words, 1, None).unwrap();
        let found: Vec<_> = found.iter().map(|it| it.get_value().to_string_lossy()).collect();
        for command in commands().iter().filter(|name| !name.contains('-')) {
            assert!(found.iter().any(|it| it == command), "{command}: {found:?}");
        }
    }
}
