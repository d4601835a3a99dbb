//! `tam sign`, `tam verify`: signing of modules, and verification of their signatures.

use super::Context;
use super::key::{Passphrase, secret};
use super::module::{self, Module, ModuleLocation, Remote, StoreOption, failed, listed, stored};
use crate::destination;
use crate::failure::{Failure, Outcome};
use crate::output::Rows;
use api::{ErrorCode, SCHEMA_VERSION};
use clap::Args;
use oci_client::{Pulled, pull};
use serde_json::json;
use std::collections::BTreeSet;
use trust::signature::{Verified, signers};
use trust::{ImageDigest, SecretKey, Signature, Signer};

/// Arguments of `tam sign`.
#[derive(Debug, Args)]
pub struct Sign {
    /// A .wasm file, a module of the store, oci:DIRECTORY[:NAME], or a registry's reference
    #[arg(value_name = "MODULE|REFERENCE")]
    module: String,
    /// The key that signs
    #[arg(long, value_name = "NAME|FILE", default_value = "default")]
    key: String,
    #[command(flatten)]
    passphrase: Passphrase,
    #[command(flatten)]
    place: StoreOption,
    #[command(flatten)]
    remote: Remote,
}

/// Arguments of `tam verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// A .wasm file, a module of the store, oci:DIRECTORY[:NAME], or a registry's reference
    #[arg(value_name = "MODULE|REFERENCE")]
    module: String,
    /// A public key whose signature is accepted; may be repeated
    #[arg(long = "key", value_name = "NAME|FILE|KEY", required = true)]
    keys: Vec<String>,
    #[command(flatten)]
    place: StoreOption,
    #[command(flatten)]
    remote: Remote,
}

impl Sign {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let subject = self.place.resolve(&self.module)?;
        let local = subject.local()?;
        let key = secret(&self.key, &self.passphrase)?;
        let (name, version, digest, place) = match (&subject, &local) {
            (ModuleLocation::Remote(reference), _) => {
                let pulled = self.sign_remote(context, reference, &key)?;
                let manifest = &pulled.checked.manifest;
                let place = format!("{}/{}", reference.registry, reference.name);
                (manifest.name.to_string(), manifest.version.clone(), pulled.digest, place)
            }
            (_, Some(module)) => {
                let place = sign_local(&subject, module, &key)?;
                let manifest = &module.manifest;
                (manifest.name.to_string(), manifest.version.clone(), module.digest, place)
            }
            (_, None) => {
                return Err(Failure::failed("the module is neither a file nor in the store"));
            }
        };
        let signer = Signer::from(key.public());
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "name": name,
            "version": version,
            "digest": digest,
            "signer": signer.to_string(),
            "signature": place,
        });
        context.output.result(&document, || {
            format!("signed {name} {version} {digest}\nby {signer}, in {place}")
        })
    }

    /// Signs a registry's module by the digest that was fetched, wherever its tag leads by then.
    fn sign_remote(
        &self,
        context: &Context<'_>,
        reference: &oci_client::Reference,
        key: &SecretKey,
    ) -> Result<Pulled, Failure> {
        let client = self.remote.client(&reference.registry)?;
        let done = module::transfer(context, async |report| {
            let pulled = pull(&client, reference, Some(report)).await?;
            let name = &reference.name;
            let signature = sign(key, &pulled.image, &pulled.checked.manifest.name.to_string());
            oci_client::push::put_signature(&client, name, &pulled.image, &signature).await?;
            Ok(pulled)
        })?;
        done.map_err(|error| failed(&error))
    }
}

fn sign(key: &SecretKey, image: &module_store::Digest, name: &str) -> Signature {
    Signature::new(key, &ImageDigest(*image.bytes()), name)
}

fn sign_local(
    subject: &ModuleLocation,
    module: &Module,
    key: &SecretKey,
) -> Result<String, Failure> {
    let image = module.image;
    let signature = sign(key, &image, &module.manifest.name.to_string());
    match subject {
        ModuleLocation::File(path) => {
            let mut file = module::file_of(path)?;
            file.add(signature)
                .map_err(|error| Failure::new(ErrorCode::Limit, error.to_string()))?;
            let beside = module::signature_path(path);
            destination::write(&beside, file.to_string().as_bytes())?;
            Ok(beside.display().to_string())
        }
        ModuleLocation::Stored(store, _) => {
            store.put_signature(&image, &signature).map_err(stored)?;
            Ok(store.directory().display().to_string())
        }
        ModuleLocation::Remote(_) => Err(Failure::failed("a registry's module is not here")),
    }
}

impl Verify {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let known = module::keys(&self.keys)?;
        let subject = self.place.resolve(&self.module)?;
        let found = match (&subject, subject.local()?) {
            (ModuleLocation::Remote(reference), _) => {
                let client = self.remote.client(&reference.registry)?;
                let pulled = module::transfer(context, async |report| {
                    pull(&client, reference, Some(report)).await
                })?;
                VerifiedModule::of_pulled(&pulled.map_err(|error| failed(&error))?, &known)
            }
            (_, Some(module)) => VerifiedModule::of_local(&module, &known),
            (_, None) => {
                return Err(Failure::failed("the module is neither a file nor in the store"));
            }
        };
        found.must_be_signed(&self.module)?;
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "name": found.name,
            "version": found.version,
            "digest": found.digest,
            "image": found.image,
            "signers": texts(&found.verified.signers),
            "strangers": texts(&found.verified.strangers),
        });
        context.output.result(&document, || found.text())
    }
}

pub(super) fn texts(signers: &BTreeSet<Signer>) -> Vec<String> {
    signers.iter().map(ToString::to_string).collect()
}

/// Module with its verified signers.
pub(super) struct VerifiedModule {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) digest: module_store::Digest,
    pub(super) image: module_store::Digest,
    pub(super) verified: Verified,
}

impl VerifiedModule {
    pub(super) fn of_pulled(pulled: &Pulled, known: &BTreeSet<Signer>) -> Self {
        let manifest = &pulled.checked.manifest;
        Self {
            name: manifest.name.to_string(),
            version: manifest.version.clone(),
            digest: pulled.digest,
            image: pulled.image,
            verified: pulled.verified(known),
        }
    }

    pub(super) fn of_local(module: &Module, known: &BTreeSet<Signer>) -> Self {
        let image = module.image;
        Self {
            name: module.manifest.name.to_string(),
            version: module.manifest.version.clone(),
            digest: module.digest,
            image,
            verified: signers(&ImageDigest(*image.bytes()), &module.signatures, known),
        }
    }

    /// Returns an error unless one of the given keys has signed the module.
    pub(super) fn must_be_signed(&self, what: &str) -> Result<(), Failure> {
        if !self.verified.signers.is_empty() {
            return Ok(());
        }
        let mut message = format!("{what} is not signed by any of these keys");
        if !self.verified.strangers.is_empty() {
            message += &format!("; it is signed by {}", listed(&self.verified.strangers));
        }
        for refused in &self.verified.refused {
            message += &format!("; {refused}");
        }
        Err(Failure::new(ErrorCode::Refused, message)
            .help("`tam sign` signs a module; --key names whose signature counts"))
    }

    pub(super) fn text(&self) -> String {
        let mut rows = Rows::pairs();
        rows.add(["module".into(), format!("{} {}", self.name, self.version)]);
        rows.add(["digest".into(), self.digest.to_string()]);
        for signer in &self.verified.signers {
            rows.add(["signed by".into(), signer.to_string()]);
        }
        for stranger in &self.verified.strangers {
            rows.add(["also by".into(), stranger.to_string()]);
        }
        for refused in &self.verified.refused {
            rows.add(["not counted".into(), refused.to_string()]);
        }
        rows.to_string()
    }
}
