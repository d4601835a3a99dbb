//! `tam key`: keys of principals, administrators and signers.

use super::Context;
use crate::failure::{Failure, Outcome};
use crate::output::Rows;
use crate::user_files::{configuration, read_file};
use api::{ErrorCode, SCHEMA_VERSION};
use clap::{Args, Subcommand};
use console::Term;
use serde_json::json;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use trust::key::FILE_LENGTH_MAX;
use trust::{KeyError, PublicKey, SecretKey, Seed, Signer};
use units::Name;
use zeroize::Zeroizing;

/// Largest passphrase file, in bytes.
const PASSPHRASE_LENGTH_MAX: u64 = 1024;
const SECRET: &str = "key.pem";
const PUBLIC: &str = "pub.pem";

/// Subcommands of `tam key`.
#[derive(Debug, Subcommand)]
pub enum Key {
    /// Make a key, encrypted with a passphrase
    New(New),
    /// Show a public key, or list all keys of this user
    Show(Show),
}

/// Arguments of `tam key new`.
#[derive(Debug, Args)]
pub struct New {
    /// The key's name in this user's folder of keys
    #[arg(default_value = "default")]
    name: Name,
    #[command(flatten)]
    passphrase: Passphrase,
    /// Store the key unencrypted: whoever can read the file has the key
    #[arg(long, conflicts_with = "passphrase_file")]
    plain: bool,
}

/// Arguments of `tam key show`.
#[derive(Debug, Args)]
pub struct Show {
    /// A key's name, or the file of a public key
    #[arg(value_name = "NAME|FILE")]
    key: Option<String>,
    /// Print as a PEM file, for OpenSSL or cosign
    #[arg(long, requires = "key")]
    pem: bool,
}

/// Source of a passphrase: a file or the terminal.
#[derive(Debug, Args)]
pub struct Passphrase {
    /// Read the passphrase from this file instead of asking for it
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

impl Key {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        match self {
            Self::New(new) => new.run(context),
            Self::Show(show) => show.run(context),
        }
    }
}

impl New {
    fn run(&self, context: &Context<'_>) -> Outcome {
        let folder = folder()?;
        let file = |kind| folder.join(format!("{}.{kind}", self.name));
        let (secret, public) = (file(SECRET), file(PUBLIC));
        if secret.exists() {
            return Err(exists(&self.name, &secret));
        }
        let passphrase = if self.plain { None } else { Some(self.passphrase.new_one()?) };
        let key = SecretKey::from_seed(&random()?);
        let salt = random()?;
        let sealed = passphrase.as_ref().map(|passphrase| (passphrase.as_str(), &*salt));
        let pem = key.to_pem(sealed);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| {
            Failure::io(format!("making the folder {}", folder.display()), &error)
        })?;
        write(&secret, 0o600, pem.as_bytes()).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => exists(&self.name, &secret),
            _ => Failure::io(format!("writing {}", secret.display()), &error),
        })?;
        write(&public, 0o644, key.public().to_pem().as_bytes())
            .map_err(|error| Failure::io(format!("writing {}", public.display()), &error))?;
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "public_key": key.public().to_string(),
            "encrypted": !self.plain,
            "file": secret,
            "public_file": public,
        });
        context.output.result(&document, || {
            format!(
                "{}\nwrote {} and {}\nnext: keep a copy of the first where nobody else comes; an administrator signs tokens with it: tam token new --key {} --for …",
                key.public(),
                secret.display(),
                public.display(),
                self.name
            )
        })
    }
}

fn exists(name: &Name, file: &Path) -> Failure {
    Failure::failed(format!("there is a key '{name}' already: {}", file.display()))
        .help("choose another name; a key is never overwritten")
}

impl Show {
    fn run(&self, context: &Context<'_>) -> Outcome {
        let Some(asked) = &self.key else { return all(context) };
        let key = public(asked)?;
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "public_key": key.to_string(),
            "pem": key.to_pem(),
        });
        context.output.result(&document, || if self.pem { key.to_pem() } else { key.to_string() })
    }
}

/// Returns the names of this user's keys, in order.
pub(crate) fn names() -> Result<Vec<String>, Failure> {
    let folder = folder()?;
    let entries = match folder.read_dir() {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    let entries = entries
        .map_err(|error| Failure::io(format!("reading the folder {}", folder.display()), &error))?;
    let suffix = format!(".{PUBLIC}");
    let name = |entry: &std::fs::DirEntry| {
        let file = entry.file_name();
        file.to_str().and_then(|name| name.strip_suffix(&suffix)).map(str::to_owned)
    };
    let mut names: Vec<String> = entries.iter().filter_map(name).collect();
    names.sort();
    Ok(names)
}

fn all(context: &Context<'_>) -> Outcome {
    let folder = folder()?;
    let mut keys = Vec::new();
    for name in names()? {
        let file = folder.join(format!("{name}.{PUBLIC}"));
        keys.push((name, read_public(&file)?.to_string()));
    }
    let document = json!({
        "schema_version": SCHEMA_VERSION,
        "folder": folder,
        "keys": keys.iter().map(|(name, key)| json!({ "name": name, "public_key": key }))
            .collect::<Vec<_>>(),
    });
    context.output.result(&document, || {
        if keys.is_empty() {
            return format!("no keys in {}\nnext: tam key new", folder.display());
        }
        let mut rows = Rows::new(["name", "public key"]);
        keys.iter().for_each(|(name, key)| rows.add([name.clone(), key.clone()]));
        rows.to_string()
    })
}

/// Returns the folder of this user's keys.
fn folder() -> Result<PathBuf, Failure> {
    Ok(configuration()?.join("keys"))
}

/// Returns the public key that an argument means: the key itself, a file, or the name of a key in
/// the user's folder.
pub(super) fn public(text: &str) -> Result<PublicKey, Failure> {
    if text.starts_with(trust::key::PREFIX) {
        return text.parse().map_err(|error| wrong(text, &error));
    }
    read_public(&found(text, PUBLIC)?)
}

/// Returns the signer's key that an argument means; also accepts cosign's keys.
pub(super) fn signer(text: &str) -> Result<Signer, Failure> {
    if text.starts_with(trust::key::PREFIX) || text.starts_with(trust::signer::P256_PREFIX) {
        return text.parse().map_err(|error| wrong(text, &error));
    }
    let file = found(text, PUBLIC)?;
    Signer::from_pem(&text_of(&file)?).map_err(|error| wrong(&file.display().to_string(), &error))
}

/// Opens the secret key of this name or file; asks for the passphrase if it is encrypted.
pub(super) fn secret(text: &str, passphrase: &Passphrase) -> Result<SecretKey, Failure> {
    let file = found(text, SECRET)?;
    let pem = Zeroizing::new(text_of(&file)?);
    opened(&pem, passphrase, &file.display().to_string())
}

/// Opens the secret key in a file, called `name` in messages; asks for the passphrase if it is
/// encrypted.
pub(super) fn opened(
    pem: &str,
    passphrase: &Passphrase,
    named: &str,
) -> Result<SecretKey, Failure> {
    match SecretKey::from_pem(pem, None) {
        Err(KeyError::NeedsPassphrase) => {}
        other => return other.map_err(|error| wrong(named, &error)),
    }
    let passphrase = passphrase.known(&format!("passphrase of {named}: "))?;
    SecretKey::from_pem(pem, Some(&passphrase)).map_err(|error| wrong(named, &error))
}

/// Returns the path of a key: in the user's folder if the text is a name, else the text itself.
fn found(text: &str, kind: &str) -> Result<PathBuf, Failure> {
    let Ok(name) = text.parse::<Name>() else { return Ok(PathBuf::from(text)) };
    let folder = folder()?;
    let file = folder.join(format!("{name}.{kind}"));
    if file.exists() || Path::new(text).exists() {
        return Ok(if file.exists() { file } else { PathBuf::from(text) });
    }
    let message = format!("there is no key '{name}' in {}", folder.display());
    Err(Failure::new(ErrorCode::NotFound, message).help(
        "`tam key show` lists the keys, `tam key new` makes one; a file is named by its path",
    ))
}

fn read_public(file: &Path) -> Result<PublicKey, Failure> {
    PublicKey::from_pem(&text_of(file)?).map_err(|error| wrong(&file.display().to_string(), &error))
}

fn text_of(file: &Path) -> Result<String, Failure> {
    let bytes = read_file(file, FILE_LENGTH_MAX as u64)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn wrong(what: &str, error: &KeyError) -> Failure {
    let code = match error {
        KeyError::WrongPassphrase => ErrorCode::Refused,
        KeyError::TooLong(_) | KeyError::Expensive(_) => ErrorCode::Limit,
        _ => ErrorCode::Usage,
    };
    Failure::new(code, format!("{what}: {error}"))
}

/// Returns 32 random bytes from the kernel.
pub(super) fn random() -> Result<Seed, Failure> {
    let mut seed = Seed::default();
    getrandom::fill(seed.as_mut())
        .map_err(|error| Failure::failed(format!("the kernel gives no random bytes: {error}")))?;
    Ok(seed)
}

fn write(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

impl Passphrase {
    /// Reads the passphrase of an existing key.
    fn known(&self, prompt: &str) -> Result<Zeroizing<String>, Failure> {
        if let Some(file) = &self.passphrase_file {
            let bytes = Zeroizing::new(read_file(file, PASSPHRASE_LENGTH_MAX)?);
            let text = Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned());
            return Ok(Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned()));
        }
        let terminal = Term::stderr();
        if !io::stdin().is_terminal() || !terminal.is_term() {
            return Err(Failure::new(
                ErrorCode::Usage,
                "there is no terminal to ask for a passphrase",
            )
            .help("use --passphrase-file FILE"));
        }
        let asked = terminal.write_str(prompt).and_then(|()| terminal.read_secure_line());
        asked.map(Zeroizing::new).map_err(|error| {
            Failure::io("reading a passphrase from the terminal", &error)
                .help("use --passphrase-file FILE")
        })
    }

    /// Reads the passphrase of a new key, twice when it is typed.
    pub(super) fn new_one(&self) -> Result<Zeroizing<String>, Failure> {
        let passphrase = self.known("passphrase of the new key: ").map_err(|failure| {
            let is_usage = failure.code == ErrorCode::Usage;
            let help = "use --passphrase-file FILE, or --plain for a key that is not encrypted";
            if is_usage { failure.help(help) } else { failure }
        })?;
        if passphrase.is_empty() {
            return Err(Failure::new(ErrorCode::Usage, "the passphrase is empty")
                .help("give one, or --plain for a key that is not encrypted"));
        }
        if self.passphrase_file.is_none() && *passphrase != *self.known("the same again: ")? {
            return Err(Failure::new(
                ErrorCode::Usage,
                "the two passphrases differ: nothing is written",
            )
            .help("try again, and type the same one twice"));
        }
        Ok(passphrase)
    }
}
