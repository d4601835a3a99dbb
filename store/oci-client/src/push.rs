//! Pushing a module to a repository: its blobs, its image, and all its signatures.

use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use hyper::{Method, StatusCode};
use module_store::layout::{Documents, MANIFEST_TYPE};
use module_store::{Digest, signatures};
use trust::Signature;

use crate::address::{Reference, TagOrDigest};
use crate::auth::encoded;
use crate::client::{Client, Progress, backoff};
use crate::error::RepositoryError;
use crate::http::{Answer, Call};
use crate::limits::ATTEMPTS_MAX;
use crate::pull::signature_image;

/// Pushes a module under a reference, with its signatures. Existing blobs are not sent again, and
/// signatures of others are preserved.
///
/// # Errors
/// The registry refuses a part. Nothing points at the blobs sent so far then.
pub async fn push(
    client: &Client,
    reference: &Reference,
    wasm: &[u8],
    documents: &Documents,
    signatures: &[Signature],
    progress: Option<Progress<'_>>,
) -> Result<Digest, RepositoryError> {
    let name = &reference.name;
    for blob in [wasm, &documents.config] {
        put_blob(client, name, blob, progress).await?;
    }
    let image = documents.entry.digest;
    // Signatures first, so that a visible module always has them.
    for signature in signatures {
        put_signature(client, name, &image, signature).await?;
    }
    let tag_or_digest = reference.tag_or_digest.clone().unwrap_or(TagOrDigest::Digest(image));
    put_manifest(client, name, &tag_or_digest, &documents.image).await?;
    Ok(image)
}

/// Adds a signature of an image to those in a registry.
///
/// # Errors
/// The registry refuses it.
pub async fn put_signature(
    client: &Client,
    name: &str,
    image: &Digest,
    signature: &Signature,
) -> Result<(), RepositoryError> {
    let there = signature_image(client, name, image).await?;
    let made = signatures::SignatureImage::with(signature, there)
        .map_err(|error| crate::image::ImageError::NotADocument(error.to_string()))?;
    let Some(made) = made else { return Ok(()) };
    for blob in made.payloads.iter().chain([&made.config]) {
        put_blob(client, name, blob, None).await?;
    }
    let tag_or_digest = TagOrDigest::Tag(signatures::name(image));
    put_manifest(client, name, &tag_or_digest, &made.image).await
}

async fn put_blob(
    client: &Client,
    name: &str,
    blob: &[u8],
    progress: Option<Progress<'_>>,
) -> Result<(), RepositoryError> {
    let digest = Digest::of(blob);
    let what = format!("the blob {digest}");
    if let Some(progress) = progress {
        progress(&what, blob.len() as u64);
    }
    again(client, async || try_put_blob(client, name, blob, &digest, &what).await).await
}

async fn try_put_blob(
    client: &Client,
    name: &str,
    blob: &[u8],
    digest: &Digest,
    what: &str,
) -> Result<(), RepositoryError> {
    let scope = scope(name);
    let call = |method, path: String| Call {
        method,
        path,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        what: what.to_owned(),
    };
    let path = format!("/v2/{name}/blobs/{digest}");
    if client.exchange(call(Method::HEAD, path), &scope).await?.status == StatusCode::OK {
        return Ok(());
    }
    let path = format!("/v2/{name}/blobs/uploads/");
    let answer = client.exchange(call(Method::POST, path.clone()), &scope).await?;
    let answer = expect(client, answer, StatusCode::ACCEPTED, what).await?;
    let location = answer.header(LOCATION).ok_or_else(|| RepositoryError::Malformed {
        target: client.target(),
        what: what.to_owned(),
        why: "it does not say where to send it".to_owned(),
    })?;
    let named = format!("digest={}", encoded(&digest.to_string()));
    let mut put = call(Method::PUT, String::new());
    let kind = HeaderValue::from_static("application/octet-stream");
    put.headers.insert(CONTENT_TYPE, kind);
    put.body = Bytes::copy_from_slice(blob);
    let answer = client.exchange_at_location((&path, location), &named, put, &scope).await?;
    expect(client, answer, StatusCode::CREATED, what).await.map(drop)
}

async fn put_manifest(
    client: &Client,
    name: &str,
    tag_or_digest: &TagOrDigest,
    manifest: &[u8],
) -> Result<(), RepositoryError> {
    let what = format!("the manifest {name}:{tag_or_digest}");
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MANIFEST_TYPE));
    let call = Call {
        method: Method::PUT,
        path: format!("/v2/{name}/manifests/{tag_or_digest}"),
        headers,
        body: Bytes::copy_from_slice(manifest),
        what: what.clone(),
    };
    again(client, async || {
        let answer = client.exchange(call.clone(), &scope(name)).await?;
        expect(client, answer, StatusCode::CREATED, &what).await.map(drop)
    })
    .await
}

fn scope(name: &str) -> String {
    format!("repository:{name}:pull,push")
}

async fn expect(
    client: &Client,
    answer: Answer,
    status: StatusCode,
    what: &str,
) -> Result<Answer, RepositoryError> {
    if answer.status == status {
        return Ok(answer);
    }
    Err(client.refused(answer, what, None).await)
}

/// Retries transient errors. Idempotent, since everything is named by its digest.
async fn again(
    client: &Client,
    work: impl AsyncFn() -> Result<(), RepositoryError>,
) -> Result<(), RepositoryError> {
    let mut attempt = 1;
    loop {
        match work().await {
            Err(error) if error.is_transient() && attempt < ATTEMPTS_MAX => {}
            done => return done,
        }
        client.http().in_time(tokio::time::sleep(backoff(attempt))).await?;
        attempt += 1;
    }
}
