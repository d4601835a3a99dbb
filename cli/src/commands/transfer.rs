//! `tam push`, `tam pull`: modules to and from repositories.

use super::Context;
use super::module::{self, Module, ModuleLocation, Remote, StoreOption, failed, listed, stored};
use super::sign::{VerifiedModule, texts};
use crate::destination;
use crate::failure::{Failure, Outcome};
use crate::output::Rows;
use api::{ErrorCode, SCHEMA_VERSION};
use clap::Args;
use module_store::{Digest, Store};
use oci_client::TagOrDigest;
use oci_client::{Mirrors, Pulled, Reference, Registry, RepositoryError, Source, Wanted};
use serde_json::json;
use std::path::PathBuf;
use tokio::time::Instant;
use trust::{Signature, SignatureFile};

/// Arguments of `tam push`.
#[derive(Debug, Args)]
pub struct Push {
    /// A .wasm file, a module of the store, or oci:DIRECTORY[:NAME]
    #[arg(value_name = "MODULE")]
    module: String,
    /// The destination: HOST[:PORT]/NAME[:TAG], or oci:DIRECTORY[:NAME]; the tag is by default the
    /// module's version
    #[arg(value_name = "REFERENCE")]
    to: String,
    #[command(flatten)]
    place: StoreOption,
    #[command(flatten)]
    remote: Remote,
}

/// Arguments of `tam pull`.
#[derive(Debug, Args)]
pub struct Pull {
    /// The module to fetch: HOST[:PORT]/NAME[:TAG|@sha256:…], or oci:DIRECTORY[:NAME]
    #[arg(value_name = "REFERENCE")]
    from: String,
    /// Write the module to this file, and its signatures beside it, instead of into the store
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Accept the module only if one of these keys has signed it; may be repeated
    #[arg(long = "key", value_name = "NAME|FILE|KEY")]
    keys: Vec<String>,
    /// Another registry that holds the same module, asked when the first one is down; may be
    /// repeated
    #[arg(long = "mirror", value_name = "HOST[:PORT][/PREFIX]")]
    mirrors: Vec<String>,
    #[command(flatten)]
    place: StoreOption,
    #[command(flatten)]
    remote: Remote,
}

impl Push {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let from = self.place.resolve(&self.module)?;
        let Some(module) = from.local()? else {
            let message = format!("{} is in a registry already", self.module);
            return Err(Failure::new(ErrorCode::Usage, message)
                .help("`tam pull` it first, or copy it with skopeo"));
        };
        let place = match self.place.destination(&self.to)? {
            ModuleLocation::Remote(reference) => self.to_registry(context, reference, &module)?,
            ModuleLocation::Stored(store, name)
                if self.to.starts_with("oci:") || self.to.contains('/') =>
            {
                to_store(&store, &name, &module)?
            }
            _ => {
                let message = format!("'{}' is no place to push to", self.to);
                return Err(Failure::new(ErrorCode::Usage, message)
                    .help("as in localhost:5000/monitor or oci:DIRECTORY"));
            }
        };
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "name": module.manifest.name,
            "version": module.manifest.version,
            "digest": module.digest,
            "image": module.documents.entry.digest,
            "reference": place,
            "signatures": module.carried.len(),
        });
        if module.carried.len() < module.signatures.len() {
            context.output.note(LEFT_BEHIND);
        }
        context.output.result(&document, || {
            let count = module.carried.len();
            let signed =
                if count == 0 { "not signed".to_owned() } else { format!("signatures: {count}") };
            format!("pushed {} as {place}, {signed}", module.digest)
        })
    }

    fn to_registry(
        &self,
        context: &Context<'_>,
        mut reference: Reference,
        module: &Module,
    ) -> Result<String, Failure> {
        let version = || TagOrDigest::Tag(module.manifest.version.clone());
        reference.tag_or_digest.get_or_insert_with(version);
        let client = self.remote.client(&reference.registry)?;
        let image = module::transfer(context, async |report| {
            let (wasm, documents) = (&module.wasm, &module.documents);
            let signatures = &module.carried;
            oci_client::push(&client, &reference, wasm, documents, signatures, Some(report)).await
        })?;
        let image = image.map_err(|error| failed(&error))?;
        Ok(match &reference.tag_or_digest {
            Some(TagOrDigest::Tag(_)) => format!("{reference}@{image}"),
            _ => reference.to_string(),
        })
    }
}

fn to_store(store: &Store, name: &str, module: &Module) -> Result<String, Failure> {
    let documents = &module.documents;
    let (image, config) = (&documents.image, &documents.config);
    store.put_image(image, config, &module.wasm, &module.manifest).map_err(stored)?;
    for signature in &module.carried {
        store.put_signature(&documents.entry.digest, signature).map_err(stored)?;
    }
    let manifest = &module.manifest;
    let mut name = name.to_owned();
    if name.is_empty() {
        name = format!("{}:{}", manifest.name, manifest.version);
    } else {
        store.tag(&module.digest, &name).map_err(stored)?;
    }
    Ok(format!("oci:{}:{name}", store.directory().display()))
}

/// Note about signatures that cannot be kept at the destination.
const LEFT_BEHIND: &str = "its signatures sign the image at the source and are not valid here; sign it again with `tam sign`";

/// Fetched module with its verified signers.
struct Fetched {
    found: VerifiedModule,
    wasm: Vec<u8>,
    /// Signatures that are valid for the module's bytes alone.
    signatures: Vec<Signature>,
    /// True if signatures are lost at the destination.
    is_less: bool,
    /// Source of the module, with its digest.
    from: String,
    resolved: Digest,
}

impl Pull {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let known = module::keys(&self.keys)?;
        let (from, pulled) = match self.place.resolve(&self.from)? {
            ModuleLocation::Remote(reference) => {
                let (registry, pulled) = self.pull(context, &reference)?;
                (format!("{registry}/{}", reference.name), pulled)
            }
            ModuleLocation::Stored(store, name) if self.from.contains(['/', ':']) => {
                let read = oci_client::directory::read(&store, &name);
                (self.from.clone(), read.map_err(|error| failed(&error))?)
            }
            _ => return Err(self.nowhere()),
        };
        let fetched = Fetched {
            found: VerifiedModule::of_pulled(&pulled, &known),
            wasm: pulled.wasm.clone(),
            signatures: pulled.own_signatures().to_vec(),
            is_less: self.loses(&pulled),
            from,
            resolved: pulled.resolved,
        };
        self.must_be_signed(&fetched)?;
        let keep = |store: &Store| pulled.store(store).map_err(|error| failed(&error));
        let place = self.put(&fetched, keep)?;
        self.print(context, &fetched, &place)
    }

    fn nowhere(&self) -> Failure {
        let message = format!("'{}' names no registry and no directory in OCI layout", self.from);
        Failure::new(ErrorCode::Usage, message)
            .help("as in localhost:5000/monitor:0.1.0, ghcr.io/team/monitor or oci:DIRECTORY:NAME")
    }

    /// Returns true if fetched signatures are not valid at the module's destination.
    fn loses(&self, pulled: &Pulled) -> bool {
        let kept = if self.output.is_some() {
            !pulled.own_signatures().is_empty()
        } else {
            pulled.keeps_signatures()
        };
        !pulled.signatures.is_empty() && !kept
    }

    fn must_be_signed(&self, fetched: &Fetched) -> Result<(), Failure> {
        if self.keys.is_empty() { Ok(()) } else { fetched.found.must_be_signed(&self.from) }
    }

    /// Stores the module at its destination; returns the location in words.
    fn put(
        &self,
        fetched: &Fetched,
        keep: impl FnOnce(&Store) -> Result<(), Failure>,
    ) -> Result<String, Failure> {
        let Some(path) = &self.output else {
            let store = self.place.open()?;
            keep(&store)?;
            return Ok(store.directory().display().to_string());
        };
        let mut file = SignatureFile::default();
        for signature in &fetched.signatures {
            let added = file.add(signature.clone());
            added.map_err(|error| Failure::new(ErrorCode::Limit, error.to_string()))?;
        }
        destination::write(path, &fetched.wasm)?;
        if !destination::allows_siblings(path) {
            return Ok(path.display().to_string());
        }
        let beside = module::signature_path(path);
        if !fetched.signatures.is_empty() {
            destination::write(&beside, file.to_string().as_bytes())?;
        } else if beside.exists() {
            // The old signatures were another module's.
            std::fs::remove_file(&beside)
                .map_err(|error| Failure::io(format!("removing {}", beside.display()), &error))?;
        }
        Ok(path.display().to_string())
    }

    fn print(&self, context: &Context<'_>, fetched: &Fetched, place: &str) -> Outcome {
        let lone = self.output.as_ref().filter(|path| !destination::allows_siblings(path));
        if let Some(path) = lone.filter(|_| !fetched.signatures.is_empty()) {
            let path = path.display();
            context.output.note(&format!("its signatures were not written: {path} is no regular file, so no signature file can stand beside it"));
        }
        if fetched.is_less {
            context.output.note(LEFT_BEHIND);
        }
        let found = &fetched.found;
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "name": found.name,
            "version": found.version,
            "digest": found.digest,
            "image": found.image,
            "from": fetched.from,
            "resolved": fetched.resolved,
            "place": place,
            "signers": texts(&found.verified.signers),
            "strangers": texts(&found.verified.strangers),
            "verified": !self.keys.is_empty(),
        });
        context.output.result(&document, || {
            let mut rows = Rows::pairs();
            let mut add = |name: &str, value: String| rows.add([name.to_owned(), value]);
            add("module", format!("{} {}", found.name, found.version));
            add("digest", found.digest.to_string());
            add("from", format!("{}@{}", fetched.from, fetched.resolved));
            add("to", place.to_owned());
            let (signers, strangers) = (&found.verified.signers, &found.verified.strangers);
            match (signers.is_empty(), strangers.is_empty()) {
                (false, _) => add("signed by", listed(signers)),
                (true, false) => add(
                    "signature",
                    format!("{}; not compared with a key you trust: --key", listed(strangers)),
                ),
                (true, true) => add("signature", "none that was looked at".to_owned()),
            }
            rows.to_string()
        })
    }

    fn pull(
        &self,
        context: &Context<'_>,
        reference: &Reference,
    ) -> Result<(String, Pulled), Failure> {
        let mut sources = vec![self.source(reference.registry.clone(), String::new())?];
        for mirror in &self.mirrors {
            let (host, prefix) = mirror.split_once('/').unwrap_or((mirror, ""));
            let registry: Registry = host.parse().map_err(|why: &str| {
                Failure::new(ErrorCode::Usage, format!("'{mirror}' is no mirror: {why}"))
            })?;
            let prefix = prefix.trim_end_matches('/');
            let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
            sources.push(self.source(registry, prefix)?);
        }
        let mut sources = Mirrors::new(sources);
        let (network, wanted) = (module::network(), Wanted::Reference(reference.clone()));
        let begin = Instant::now();
        let pulled = module::transfer(context, async |report| {
            oci_client::pull_from(&network, &mut sources, &wanted, begin, Some(report)).await
        })?;
        match pulled {
            Ok((source, pulled)) => Ok((source.registry.to_string(), pulled)),
            Err(errors) => Err(all_failed(&errors)),
        }
    }

    fn source(&self, registry: Registry, prefix: String) -> Result<Source, Failure> {
        let settings = self.remote.settings(&registry)?;
        Ok(Source { registry, prefix, settings })
    }
}

/// Returns the failure of all mirrors: the first error, with those of the others.
fn all_failed(errors: &[RepositoryError]) -> Failure {
    let Some((first, others)) = errors.split_first() else {
        return Failure::failed("no registry was asked");
    };
    let mut failure = failed(first);
    for other in others {
        failure.message += &format!("; {other}");
    }
    failure
}
