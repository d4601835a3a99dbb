//! Small HTTP server: each request gets a body of a known length and content, once.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread::JoinHandle;

use sha2::{Digest, Sha256};
use testkit::Net;

/// Bytes of one write.
const PIECE_LENGTH: usize = 64 << 10;

/// Server that answers one request.
pub struct HttpServer {
    pub address: SocketAddr,
    digest: JoinHandle<std::io::Result<String>>,
}

impl HttpServer {
    /// Serves `length` bytes, a multiple of 64 KiB, at an address of a host.
    pub fn start(net: &Net, host: &str, address: IpAddr, length: u64) -> Self {
        let listener = net.within(host, || TcpListener::bind((address, 0))).unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        Self { address, digest: std::thread::spawn(move || serve(&listener, length)) }
    }

    /// Returns the SHA-256 of the sent bytes, as sha256sum writes it.
    pub fn digest(self) -> String {
        self.digest.join().unwrap().unwrap()
    }
}

fn serve(listener: &TcpListener, length: u64) -> std::io::Result<String> {
    let (mut stream, _) = listener.accept()?;
    let mut lines = BufReader::new((&stream).take(8 << 10));
    let mut line = String::new();
    while lines.read_line(&mut line)? > 2 {
        line.clear();
    }
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    let mut digest = Sha256::new();
    let mut piece = vec![0xa5; PIECE_LENGTH];
    for number in 0..length / PIECE_LENGTH as u64 {
        // No two pieces are alike: one that is missing, doubled or moved changes the digest.
        piece[..8].copy_from_slice(&number.to_le_bytes());
        digest.update(&piece);
        stream.write_all(&piece)?;
    }
    Ok(hex::encode(digest.finalize()))
}
