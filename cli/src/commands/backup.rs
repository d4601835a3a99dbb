//! `tam backup` and `tam restore`: a node's key and state in one file.

use super::Context;
use super::key::{Passphrase, random};
use crate::failure::{Failure, Outcome};
use crate::user_files::read_file;
use api::{ErrorCode, NodeBackup, SCHEMA_VERSION};
use clap::Args;
use daemon::backup::{
    Archive, ArchiveError, Entry, FILE_LENGTH_MAX, KEY_FILE, Places, RestoreError, read, restore,
};
use serde_json::json;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use trust::SecretKey;

/// Arguments of `tam backup`.
#[derive(Debug, Args)]
pub struct Backup {
    /// The file to write; it must not exist yet
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    passphrase: Passphrase,
    /// Store the node's key unencrypted: whoever can read the file can act as the node
    #[arg(long, conflicts_with = "passphrase_file")]
    plain: bool,
    /// Leave the modules out
    #[arg(long)]
    without_modules: bool,
}

/// Arguments of `tam restore`.
#[derive(Debug, Args)]
pub struct Restore {
    /// A file that `tam backup` has written
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The directory to restore the node's state to; by default where it was
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The directory to restore the module store to; by default where it was
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    #[command(flatten)]
    passphrase: Passphrase,
}

impl Backup {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let backup = context.client()?.backup()?;
        let state = PathBuf::from(&backup.state_directory);
        let key = self.key(&state)?;
        let shown = self.file.display().to_string();
        let file = File::options().write(true).create_new(true).mode(0o600).open(&self.file);
        let file = file.map_err(|error| Failure::io(format!("making {shown}"), &error))?;
        let written = self.write(context, &backup, &key, &state, file);
        if written.is_err() {
            // An incomplete backup is useless.
            let _ = std::fs::remove_file(&self.file);
        }
        let files = written?;
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "node": backup.node,
            "generation": backup.generation,
            "file": self.file,
            "files": files,
            "encrypted": !self.plain,
        });
        context.output.result(&document, || {
            let key = if self.plain { "the node's key in it is not encrypted" } else { "the node's key in it needs the passphrase" };
            format!("wrote {shown}: generation {} of node {} and {files} files; {key}\nnext: keep it where the machine is not", backup.generation, backup.node)
        })
    }

    /// The node's key as it goes into the file.
    fn key(&self, state: &Path) -> Result<String, Failure> {
        let bytes = read_file(&state.join(KEY_FILE), trust::key::FILE_LENGTH_MAX as u64)?;
        let key = SecretKey::from_pem(&String::from_utf8_lossy(&bytes), None)
            .map_err(|error| Failure::failed(format!("the node's key: {error}")))?;
        if self.plain {
            return Ok(key.to_pem(None).to_string());
        }
        let (passphrase, salt) = (self.passphrase.new_one()?, random()?);
        Ok(key.to_pem(Some((&passphrase, &salt))).to_string())
    }

    fn write(
        &self,
        context: &Context<'_>,
        backup: &NodeBackup,
        key: &str,
        state: &Path,
        file: File,
    ) -> Result<usize, Failure> {
        let mut archive = Archive::begin(BufWriter::new(file), backup).map_err(|e| failed(&e))?;
        archive.add(&Entry::Key, key.as_bytes()).map_err(|e| failed(&e))?;
        let mut files = 1;
        let mut folders = vec![(state.to_owned(), vec!["ledger"])];
        if !self.without_modules {
            let store = PathBuf::from(&backup.store_directory);
            // The index comes last: everything that it names exists when it is read.
            folders.push((store, vec!["oci-layout", "blobs/sha256", "index.json"]));
        }
        for (at, (base, parts)) in folders.iter().enumerate() {
            for part in parts {
                for name in listed(&base.join(part), part)? {
                    let path = if at == 0 { name.clone() } else { format!("store/{name}") };
                    // Files of other programs are left out.
                    let Some(entry) = Entry::of(&path) else { continue };
                    context.output.progress(&format!("{path} ({files} files)"));
                    let bytes = read_file(&base.join(&name), FILE_LENGTH_MAX)?;
                    archive.add(&entry, &bytes).map_err(|error| failed(&error))?;
                    files += 1;
                }
            }
        }
        let mut file = archive.end().map_err(|error| failed(&error))?;
        let synced = file.flush().and_then(|()| file.get_ref().sync_all());
        synced.map_err(|error| Failure::io("writing the backup", &error))?;
        Ok(files)
    }
}

/// The files of a folder by their paths from its base, or the file itself.
fn listed(path: &Path, name: &str) -> Result<Vec<String>, Failure> {
    let failed = |error: &std::io::Error| Failure::io(format!("reading {}", path.display()), error);
    if path.is_file() {
        return Ok(vec![name.to_owned()]);
    }
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(&error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| failed(&error))?;
        names.push(format!("{name}/{}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names)
}

impl Restore {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let shown = self.file.display().to_string();
        let file = File::open(&self.file);
        let file = file.map_err(|error| Failure::io(format!("reading {shown}"), &error))?;
        context.output.progress(&format!("comparing the digests of {shown}"));
        let mut contents = read(BufReader::new(file)).map_err(|error| failed(&error))?;
        if let Some(key) = contents.files.get_mut(&Entry::Key) {
            let pem = String::from_utf8_lossy(key).into_owned();
            let opened = super::key::opened(&pem, &self.passphrase, &shown)?;
            *key = opened.to_pem(None).as_bytes().to_vec();
        }
        let backup = &contents.backup;
        let place =
            |given: &Option<PathBuf>, was: &str| given.clone().unwrap_or_else(|| was.into());
        let places = Places {
            state: place(&self.state, &backup.state_directory),
            store: place(&self.store, &backup.store_directory),
        };
        restore(&contents, &places).map_err(|error| {
            let code = match &error {
                RestoreError::Occupied { .. } | RestoreError::State(_) => ErrorCode::Usage,
                _ => ErrorCode::Failed,
            };
            Failure::new(code, error.to_string()).help("nothing was changed")
        })?;
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "node": backup.node,
            "generation": backup.generation,
            "state": places.state,
            "store": places.store,
        });
        context.output.result(&document, || {
            format!(
                "generation {} of node {} is in {} and {}\nnext: tam node --config FILE, whose state and store are these",
                backup.generation, backup.node, places.state.display(), places.store.display()
            )
        })
    }
}

fn failed(error: &ArchiveError) -> Failure {
    let code = match error {
        ArchiveError::Io(_) => ErrorCode::Failed,
        ArchiveError::TooLarge(_) => ErrorCode::Limit,
        ArchiveError::Damaged(_) | ArchiveError::Incomplete(_) => ErrorCode::Refused,
        ArchiveError::Stranger(_) | ArchiveError::State(_) => ErrorCode::Usage,
    };
    Failure::new(code, error.to_string())
}
