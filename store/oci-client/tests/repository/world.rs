//! Simulated registries in memory: one function per host that responds, and bodies that misbehave.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use module_store::Digest;
use module_store::layout::{Documents, MANIFEST_TYPE, documents};
use oci_client::Peer;
use oci_client::http::{Connected, Connecting, Forbidden, Reach, Target, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use trust::{ImageDigest, SecretKey, Seed, Signature, Signer};

/// Returns a valid module of this version.
pub fn module(version: &str) -> Vec<u8> {
    let manifest = format!("abi = 1\nname = \"monitor\"\nversion = \"{version}\"\nwindow = 64\n");
    let text = r#"(module (memory (export "memory") 1 1)
        (func (export "on_packet") (result i32) i32.const 0))"#;
    let mut wasm = wat::parse_str(text).unwrap();
    let mut section = vec![9];
    section.extend(b"tamandua");
    section.extend(manifest.as_bytes());
    wasm.push(0);
    let mut length = section.len();
    while length >= 0x80 {
        wasm.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    wasm.push(length as u8);
    section[0] = 8;
    wasm.extend(section);
    wasm
}

pub fn key(byte: u8) -> SecretKey {
    SecretKey::from_seed(&Seed::from([byte; 32]))
}

pub fn signer(byte: u8) -> Signer {
    key(byte).public().into()
}

/// Module with its documents and one signature.
pub struct Made {
    pub wasm: Vec<u8>,
    pub digest: Digest,
    pub documents: Documents,
    pub signature: module_store::signatures::SignatureImage,
}

pub fn made(version: &str) -> Made {
    let wasm = module(version);
    let checked = abi::Unverified(&wasm).check().unwrap();
    let documents = documents(&wasm, &checked.manifest).unwrap();
    let image = ImageDigest(*documents.entry.digest.bytes());
    let signature = Signature::new(&key(1), &image, "monitor");
    let signature =
        module_store::signatures::SignatureImage::with(&signature, None).unwrap().unwrap();
    Made { digest: Digest::of(&wasm), wasm, documents, signature }
}

impl Made {
    pub fn image(&self) -> Digest {
        self.documents.entry.digest
    }

    /// Returns a registry's responses to each path under `/v2/monitor/`.
    pub fn answers(&self) -> HashMap<String, Reply> {
        let mut answers = HashMap::new();
        let manifest = |bytes: &[u8]| Reply::ok(bytes).with("Content-Type", MANIFEST_TYPE);
        let image = manifest(&self.documents.image);
        answers.insert("manifests/latest".to_owned(), image.clone());
        answers.insert(format!("manifests/{}", self.image()), image);
        let tag = module_store::signatures::name(&self.image());
        answers.insert(format!("manifests/{tag}"), manifest(&self.signature.image));
        let blobs = [
            &self.wasm,
            &self.documents.config,
            &self.signature.payloads[0],
            &self.signature.config,
        ];
        for blob in blobs {
            answers.insert(format!("blobs/{}", Digest::of(blob)), Reply::ok(blob));
        }
        answers
    }
}

/// Delivery of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    Whole,
    /// Connection closed after half of it.
    Half,
    /// Slow delivery: one byte a second.
    Drip,
    /// Repeated endlessly.
    Endless,
    /// Nothing after the head.
    Never,
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub delivery: Delivery,
}

impl Reply {
    pub fn ok(body: &[u8]) -> Self {
        Self { status: 200, headers: Vec::new(), body: body.to_vec(), delivery: Delivery::Whole }
    }

    pub fn status(status: u16) -> Self {
        Self { status, ..Self::ok(b"") }
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn by(self, delivery: Delivery) -> Self {
        Self { delivery, ..self }
    }
}

/// Request as received.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
}

impl Received {
    /// Returns the path after `/v2/monitor/`.
    pub fn rest(&self) -> &str {
        self.path.strip_prefix("/v2/monitor/").unwrap_or(&self.path)
    }

    /// Returns the first byte of the requested range.
    pub fn from(&self) -> usize {
        let range = self.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
        range.and_then(|range| range.trim_end_matches('-').parse().ok()).unwrap_or(0)
    }
}

type Handler = Box<dyn FnMut(&Received) -> Reply + Send>;

/// Hosts by name. Names without a host do not respond.
#[derive(Default)]
pub struct World {
    hosts: Mutex<HashMap<String, Arc<Mutex<Handler>>>>,
    pub asked: Arc<Mutex<Vec<(String, Received)>>>,
    pub reaches: Arc<Mutex<Vec<(String, Reach)>>>,
    /// Hosts on this machine or its network; all others are remote.
    near: Mutex<HashMap<String, Peer>>,
}

impl World {
    pub fn host(&self, name: &str, handler: impl FnMut(&Received) -> Reply + Send + 'static) {
        let handler: Handler = Box::new(handler);
        self.hosts.lock().unwrap().insert(name.to_owned(), Arc::new(Mutex::new(handler)));
    }

    /// Adds a host with these responses, and 404 for all other paths.
    pub fn answers(&self, name: &str, answers: HashMap<String, Reply>) {
        self.host(name, move |asked| {
            answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404))
        });
    }

    /// Changes the network distance of a host from now on.
    pub fn move_host(&self, name: &str, at: Peer) {
        self.near.lock().unwrap().insert(name.to_owned(), at);
    }

    pub fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl Transport for World {
    fn connect<'a>(&'a self, target: &'a Target, reach: Reach) -> Connecting<'a> {
        let handler = self.hosts.lock().unwrap().get(&target.host).cloned();
        self.reaches.lock().unwrap().push((target.host.clone(), reach));
        let (asked, host) = (Arc::clone(&self.asked), target.host.clone());
        let peer = self.near.lock().unwrap().get(&target.host).copied().unwrap_or(Peer::Beyond);
        Box::pin(async move {
            if reach == Reach::OtherMachines && peer != Peer::Beyond {
                return Err(io::Error::other(Forbidden("it is an address of this machine".into())));
            }
            let Some(handler) = handler else {
                return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
            };
            let (ours, theirs) = duplex(64 << 10);
            tokio::spawn(serve(theirs, handler, asked, host));
            Ok(Connected { stream: Box::new(ours), peer })
        })
    }
}

async fn serve(
    mut stream: DuplexStream,
    handler: Arc<Mutex<Handler>>,
    log: Arc<Mutex<Vec<(String, Received)>>>,
    host: String,
) {
    while let Some(asked) = read(&mut stream).await {
        log.lock().unwrap().push((host.clone(), asked.clone()));
        let reply = handler.lock().unwrap()(&asked);
        // The client may close the connection early.
        if answer(&mut stream, &asked, reply).await.is_err() {
            return;
        }
    }
}

async fn read(stream: &mut DuplexStream) -> Option<Received> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let text = String::from_utf8(head).unwrap();
    let mut lines = text.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let header = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_ascii_lowercase(), value.to_owned()))
    };
    let headers: HashMap<_, _> = lines.filter_map(header).collect();
    let length = headers.get("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Received { method, path, headers })
}

async fn answer(stream: &mut DuplexStream, asked: &Received, reply: Reply) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {} X\r\n", reply.status);
    let has_length = reply.headers.iter().any(|(name, _)| name == "Content-Length");
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if reply.delivery == Delivery::Endless {
        head += "Transfer-Encoding: chunked\r\n";
    } else if !has_length {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    head += "\r\n";
    stream.write_all(head.as_bytes()).await?;
    if asked.method == "HEAD" {
        return Ok(());
    }
    match reply.delivery {
        Delivery::Whole => stream.write_all(&reply.body).await,
        Delivery::Half => {
            stream.write_all(&reply.body[..reply.body.len() / 2]).await?;
            Err(io::ErrorKind::BrokenPipe.into())
        }
        Delivery::Drip => {
            for byte in reply.body {
                stream.write_all(&[byte]).await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok(())
        }
        Delivery::Endless => loop {
            stream.write_all(format!("{:x}\r\n", 4096).as_bytes()).await?;
            stream.write_all(&[b' '; 4096]).await?;
            stream.write_all(b"\r\n").await?;
        },
        Delivery::Never => std::future::pending().await,
    }
}
