//! Tests of the client against a socket with prepared answers.

use super::*;
use crate::errors::ErrorInfo;
use crate::types::SCHEMA_VERSION;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

/// Answers one request with these bytes; the thread returns the request.
fn answering(answer: impl Into<Vec<u8>>) -> (Client, std::thread::JoinHandle<String>, PathBuf) {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let directory =
        std::env::temp_dir().join(format!("tam-client-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let socket = directory.join("api.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let answer = answer.into();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = vec![0; 65_536];
        let length = stream.read(&mut asked).unwrap();
        stream.write_all(&answer).unwrap();
        asked.truncate(length);
        String::from_utf8(asked).unwrap()
    });
    (Client::new(&socket), server, directory)
}

fn http(status: &str, body: &impl Serialize) -> String {
    let body = serde_json::to_string(body).unwrap();
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn a_long_wait_is_reported_once_and_the_answer_still_arrives() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static CALLED: AtomicU32 = AtomicU32::new(0);
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let body = http("200 OK", &ServiceList { schema_version: SCHEMA_VERSION, services: vec![] });
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for request in 0..2 {
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            // The answer stays late until the client has noticed.
            while CALLED.load(Ordering::Relaxed) < 1 {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(CALLED.load(Ordering::Relaxed), 1, "request {request}");
            stream.write_all(body.as_bytes()).unwrap();
        }
    });
    let client = Client::new(&socket).with_on_delay(Some(|_| {
        CALLED.fetch_add(1, Ordering::Relaxed);
    }));
    for _ in 0..2 {
        assert_eq!(client.services().unwrap().services, []);
    }
    server.join().unwrap();
}

#[test]
fn every_operation_is_in_the_table() {
    for operation in [
        Operation::Node,
        Operation::Services,
        Operation::Deploy,
        Operation::Service,
        Operation::Remove,
        Operation::Rules,
        Operation::AddRules,
        Operation::RemoveRule,
        Operation::StoreModule,
        Operation::Modules,
        Operation::Stats,
        Operation::Events,
        Operation::Why,
        Operation::Explain,
        Operation::Metrics,
        Operation::Capture,
        Operation::Captured,
        Operation::EndCapture,
        Operation::Desired,
        Operation::Apply,
        Operation::Confirm,
        Operation::Rollback,
        Operation::OpenApi,
    ] {
        assert_eq!(ENDPOINTS.iter().filter(|e| e.operation == operation).count(), 1);
    }
}

#[test]
fn a_result_is_parsed_as_its_type() {
    let removed =
        Removed { schema_version: SCHEMA_VERSION, service: "a b/c".into(), rules: vec![4] };
    let (client, server, directory) = answering(http("200 OK", &removed));
    assert_eq!(client.remove("a b/c", true).unwrap(), removed);
    let asked = server.join().unwrap();
    assert!(
        asked.starts_with("DELETE /v1/services/a%20b%2Fc?cascade=true HTTP/1.1\r\n"),
        "{asked}"
    );
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_refusal_keeps_code_message_and_help() {
    let document = ErrorDocument {
        schema_version: SCHEMA_VERSION,
        error: ErrorInfo {
            code: ErrorCode::NotFound,
            message: "there is no service 'x'".into(),
            help: Some("see `tam list`".into()),
        },
    };
    let (client, server, directory) = answering(http("404 Not Found", &document));
    let error = client.service("x").unwrap_err();
    assert_eq!((error.code(), error.help()), (ErrorCode::NotFound, document.error.help));
    assert_eq!(error.to_string(), "there is no service 'x'");
    server.join().unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_connection_has_one_request_after_another_until_the_node_closes_it() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let answer = http("200 OK", &ServiceList { schema_version: 1, services: Vec::new() });
    let (closed, is_closed) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        for requests in [2, 1, 1] {
            let (mut stream, _) = listener.accept().unwrap();
            for _ in 0..requests {
                assert!(stream.read(&mut [0; 65_536]).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            }
            if requests == 1 {
                // Unsolicited bytes are no answer to the next request.
                stream.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").unwrap();
            }
            drop(stream);
            closed.send(()).unwrap();
        }
    });
    let client = Client::new(&socket);
    for requests in [2, 1] {
        for _ in 0..requests {
            assert!(client.services().unwrap().services.is_empty());
        }
        is_closed.recv().unwrap();
    }
    // Another client has its own connection, for as long as the client exists.
    let another = client.clone();
    assert!(another.services().unwrap().services.is_empty());
    server.join().unwrap();
}

#[test]
fn nobody_listening_is_unreachable() {
    let error = Client::new("/nonexistent/api.sock").node().unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unreachable);
    assert!(error.help().unwrap().contains("tam node"));
}

#[test]
fn a_connection_that_breaks_is_unreachable() {
    let (client, server, directory) = answering("");
    assert_eq!(client.stats().unwrap_err().code(), ErrorCode::Unreachable);
    server.join().unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn an_answer_that_is_no_document_is_reported() {
    let (client, server, directory) = answering(http("500 Internal Server Error", &"oops"));
    let error = client.rules().unwrap_err();
    assert_eq!(error.code(), ErrorCode::Failed);
    assert!(error.to_string().contains("500"), "{error}");
    server.join().unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}
