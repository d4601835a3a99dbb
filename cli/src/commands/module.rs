//! Modules with their signatures, in a file, a directory in OCI layout, this user's store or a
//! registry. Shared by `tam sign`, `verify`, `push` and `pull`.

use super::key::signer;
use super::{Context, read_module};
use crate::failure::Failure;
use crate::user_files::read_file;
use abi::Manifest;
use api::ErrorCode;
use clap::Args;
use module_store::layout::{Documents, documents};
use module_store::{Digest, Store, StoreError};
use oci_client::http::Transport;
use oci_client::image::ImageError;
use oci_client::{
    Client, Credentials, Encryption, Network, Reference, Registry, RepositoryError, Settings,
};
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use trust::{Signature, SignatureFile, Signer};

/// Prefix of a directory in OCI layout, as in skopeo.
const LAYOUT: &str = "oci:";
/// Time after which a transfer shows its progress.
const QUIET: Duration = Duration::from_secs(1);
/// Interval at which progress is shown.
const TICK: Duration = Duration::from_millis(200);

/// Location of this user's modules.
#[derive(Debug, Args)]
pub struct StoreOption {
    /// The directory of modules, in OCI layout [default: ~/.local/share/tamandua/modules]
    #[arg(long, value_name = "DIRECTORY")]
    store: Option<PathBuf>,
}

/// Settings for requests to a registry.
#[derive(Debug, Args)]
pub struct Remote {
    /// Connect to the registry without TLS; one on this machine is always asked without
    #[arg(long)]
    plain_http: bool,
    /// The file with the registry's passwords [default: $DOCKER_CONFIG/config.json or
    /// ~/.docker/config.json]
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Seconds to keep trying
    #[arg(long, value_name = "SECONDS", default_value_t = oci_client::limits::TIME_MAX.as_secs())]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    time: u64,
}

/// Module that a command works on.
pub(super) enum ModuleLocation {
    /// A `.wasm` file.
    File(PathBuf),
    /// Module of a store by its name; the empty name means the store's only module.
    Stored(Store, String),
    /// Module of a registry.
    Remote(Reference),
}

/// Module read into memory.
pub(super) struct Module {
    pub(super) wasm: Vec<u8>,
    pub(super) manifest: Manifest,
    pub(super) digest: Digest,
    /// Digest that signatures sign at the module's location.
    pub(super) image: Digest,
    /// Signatures stored beside the module.
    pub(super) signatures: Vec<Signature>,
    /// Image documents, ready to be stored elsewhere.
    pub(super) documents: Documents,
    /// Signatures that stay valid for those documents.
    pub(super) carried: Vec<Signature>,
}

impl StoreOption {
    /// Opens the store; creates it if it does not exist.
    pub(super) fn open(&self) -> Result<Store, Failure> {
        Store::open(self.directory()?).map_err(stored)
    }

    fn directory(&self) -> Result<PathBuf, Failure> {
        if let Some(directory) = &self.store {
            return Ok(directory.clone());
        }
        let of = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = of("XDG_DATA_HOME").or_else(|| Some(of("HOME")?.join(".local/share")));
        let base = base.ok_or_else(|| {
            let message = "neither XDG_DATA_HOME nor HOME says where modules are";
            Failure::new(ErrorCode::Usage, message).help("name a directory with --store")
        })?;
        Ok(base.join("tamandua/modules"))
    }

    /// Resolves a text to a destination: like [`StoreOption::resolve`], but creates a directory
    /// that does not exist.
    pub(super) fn destination(&self, text: &str) -> Result<ModuleLocation, Failure> {
        match layout_of(text) {
            Some((directory, name)) => {
                let store = Store::open(directory).map_err(stored)?;
                Ok(ModuleLocation::Stored(store, name.to_owned()))
            }
            None => self.resolve(text),
        }
    }

    /// Resolves a text to a module: a file, `oci:DIRECTORY[:NAME]`, a directory in OCI layout, a
    /// registry's reference, or a name of this user's store.
    pub(super) fn resolve(&self, text: &str) -> Result<ModuleLocation, Failure> {
        if let Some((directory, name)) = layout_of(text) {
            return Ok(ModuleLocation::Stored(existing(directory)?, name.to_owned()));
        }
        let path = Path::new(text);
        if text.ends_with(".wasm") || path.is_file() {
            return Ok(ModuleLocation::File(path.to_owned()));
        }
        if path.join("oci-layout").is_file() {
            return Ok(ModuleLocation::Stored(Store::open(path).map_err(stored)?, String::new()));
        }
        if oci_client::address::is_reference(text) {
            let reference = text.parse::<Reference>();
            let wrong = |error: oci_client::address::ReferenceError| {
                Failure::new(ErrorCode::Usage, error.to_string())
            };
            return reference.map(ModuleLocation::Remote).map_err(wrong);
        }
        if text.contains('/') {
            let message = format!("there is no file {text}, and it names no registry");
            return Err(Failure::new(ErrorCode::NotFound, message)
                .help("a registry is named as in localhost:5000/monitor or ghcr.io/team/monitor"));
        }
        Ok(ModuleLocation::Stored(self.open()?, text.to_owned()))
    }
}

/// Splits `oci:DIRECTORY[:NAME]` as skopeo does: a directory has no colon in its name.
fn layout_of(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix(LAYOUT)?;
    Some(rest.split_once(':').unwrap_or((rest, "")))
}

/// Opens an existing directory in OCI layout for reading; creates nothing.
fn existing(directory: &str) -> Result<Store, Failure> {
    let path = Path::new(directory);
    if path.join("oci-layout").is_file() {
        return Store::open(path).map_err(stored);
    }
    let (code, message) = if path.exists() {
        (
            ErrorCode::Usage,
            format!("{directory} is no directory in OCI layout: it has no 'oci-layout'"),
        )
    } else {
        (ErrorCode::NotFound, format!("there is no directory {directory}"))
    };
    Err(Failure::new(code, message).help("`tam push MODULE oci:DIRECTORY` makes one"))
}

impl ModuleLocation {
    /// Reads the module if it is on this machine; `None` for a registry's, which has to be pulled.
    pub(super) fn local(&self) -> Result<Option<Module>, Failure> {
        match self {
            Self::File(path) => of_file(path).map(Some),
            Self::Stored(store, name) => of_store(store, name).map(Some),
            Self::Remote(_) => Ok(None),
        }
    }
}

/// Returns the path of a module's signature file, `MODULE.wasm.sig`.
pub(super) fn signature_path(module: &Path) -> PathBuf {
    let mut name = module.as_os_str().to_owned();
    name.push(".sig");
    PathBuf::from(name)
}

/// Reads the signature file beside a module; empty when there is none.
pub(super) fn file_of(module: &Path) -> Result<SignatureFile, Failure> {
    let path = signature_path(module);
    if !path.exists() {
        return Ok(SignatureFile::default());
    }
    let bytes = read_file(&path, trust::signature::file::FILE_LENGTH_MAX as u64)?;
    let text = String::from_utf8_lossy(&bytes);
    text.parse().map_err(|error: trust::SignatureError| {
        Failure::new(ErrorCode::Refused, format!("{}: {error}", path.display()))
            .help("remove it, and let its signers sign again")
    })
}

fn of_file(path: &Path) -> Result<Module, Failure> {
    let (wasm, checked) = read_module(path)?;
    let manifest = checked.manifest;
    let documents = documents(&wasm, &manifest)
        .map_err(|error| Failure::failed(format!("making the module's image: {error}")))?;
    let signatures = file_of(path)?.signatures().to_vec();
    let (digest, image, carried) = (Digest::of(&wasm), documents.entry.digest, signatures.clone());
    Ok(Module { wasm, manifest, digest, image, signatures, documents, carried })
}

fn of_store(store: &Store, name: &str) -> Result<Module, Failure> {
    let pulled = oci_client::directory::read(store, name).map_err(|error| failed(&error))?;
    let (documents, carried) = pulled.documents();
    let carried = carried.to_vec();
    Ok(Module {
        manifest: pulled.checked.manifest,
        digest: pulled.digest,
        image: pulled.image,
        signatures: pulled.signatures,
        wasm: pulled.wasm,
        documents,
        carried,
    })
}

/// Parses the named keys.
pub(super) fn keys(names: &[String]) -> Result<BTreeSet<Signer>, Failure> {
    names.iter().map(|name| signer(name)).collect()
}

impl Remote {
    /// Returns the settings for requests to this registry.
    pub(super) fn settings(&self, registry: &Registry) -> Result<Settings, Failure> {
        let file = self.auth_file.clone().or_else(Credentials::usual_file);
        let credentials = file.map(|file| Credentials::of_file(&file, registry)).transpose();
        let credentials = credentials.map_err(|error| failed(&error))?.flatten();
        let time_max = Duration::from_secs(self.time);
        let encryption = if self.plain_http { Encryption::Never } else { Encryption::Usual };
        Ok(Settings { encryption, credentials, time_max, ..Settings::default() })
    }

    /// Returns a client of a registry; its time limit starts now.
    pub(super) fn client(&self, registry: &Registry) -> Result<Client, Failure> {
        Ok(Client::new(network(), registry, self.settings(registry)?))
    }
}

/// Returns the transport for registries.
pub(super) fn network() -> Arc<dyn Transport> {
    Arc::new(Network::new(netlink::is_own_address))
}

/// Callback with the bytes transferred so far.
pub(super) type Report = dyn Fn(&str, u64) + Send + Sync;

/// Runs a transfer to its end; shows progress on a terminal after [`QUIET`].
pub(super) fn transfer<T>(
    context: &Context<'_>,
    work: impl AsyncFnOnce(&Report) -> T,
) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::io("starting a runtime", &error))?;
    let (sender, receiver) = mpsc::channel::<(String, u64)>();
    let is_shown = std::io::stderr().is_terminal();
    let report = move |what: &str, bytes: u64| {
        if is_shown {
            // The receiver is gone once the transfer has ended.
            let _ = sender.send((what.to_owned(), bytes));
        }
    };
    let begin = Instant::now();
    Ok(runtime.block_on(async {
        let work = std::pin::pin!(work(&report));
        let mut work = work;
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = tick.tick() => {
                    if let Some((what, bytes)) = receiver.try_iter().last()
                        && begin.elapsed() > QUIET
                    {
                        context.output.progress(&format!("{what}: {} KiB", bytes >> 10));
                    }
                }
            }
        }
    }))
}

/// Converts an error of the store.
pub(super) fn stored(error: StoreError) -> Failure {
    Failure::new(code_of_store(&error), error.to_string())
}

fn code_of_store(error: &StoreError) -> ErrorCode {
    match error {
        StoreError::NotFound { .. } | StoreError::Empty { .. } => ErrorCode::NotFound,
        StoreError::TooLarge { .. } => ErrorCode::Limit,
        StoreError::Damaged { .. } => ErrorCode::Refused,
        StoreError::Ambiguous { .. }
        | StoreError::Several { .. }
        | StoreError::PrefixTooShort { .. }
        | StoreError::NotAStore { .. } => ErrorCode::Usage,
        _ => ErrorCode::Failed,
    }
}

/// Converts an error of a repository.
pub(super) fn failed(error: &RepositoryError) -> Failure {
    use RepositoryError as Error;
    let code = match error {
        Error::NotFound { .. } => ErrorCode::NotFound,
        Error::Denied { .. }
        | Error::OtherBytes { .. }
        | Error::Longer { .. }
        | Error::Malformed { .. }
        | Error::Redirected { .. }
        | Error::Forbidden { .. }
        | Error::Image(ImageError::Length { .. }) => ErrorCode::Refused,
        Error::TooLarge { .. } => ErrorCode::Limit,
        Error::Unreachable { .. }
        | Error::Broken { .. }
        | Error::TooSlow { .. }
        | Error::TookTooLong(_)
        | Error::Status { .. } => ErrorCode::Unreachable,
        Error::Image(_) | Error::NotAModule { .. } | Error::Credentials { .. } => ErrorCode::Usage,
        Error::Store(error) => code_of_store(error),
    };
    Failure::new(code, error.to_string())
}

/// Formats a list of signers.
pub(super) fn listed(signers: &BTreeSet<Signer>) -> String {
    signers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
