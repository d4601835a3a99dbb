//! Netlink socket: sends a request and receives its answers, up to the acknowledgement. Knows the
//! message header and no message contents.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rtnetlink::packet_core::NetlinkSerializable;
use rtnetlink::packet_core::{
    Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
    NetlinkBuffer, NetlinkHeader, NlasIterator,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
    socket_with,
};

use super::NetlinkError;

/// Receive buffer in bytes. The kernel fills at most 32 KiB per datagram of a dump
/// (`NLMSG_GOODSIZE` and `max_recvmsg_len` in net/netlink/af_netlink.c), twice that for links with
/// many VFs.
const RECEIVE_BUFFER: usize = 64 * 1024;

/// Longest wait for an answer. The kernel answers from memory; a later answer is a lost message,
/// not a slow one.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Most attempts at a consistent dump. A dump that changed while it was read is read again; a table
/// that changes faster than it can be read eight times is taken as it is.
const DUMP_ATTEMPTS_MAX: usize = 8;

/// `NLM_F_CAPPED` and `NLM_F_ACK_TLVS` (include/uapi/linux/netlink.h).
const ACK_CAPPED: u16 = 0x100;
const ACK_HAS_ATTRIBUTES: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: the kernel's own explanation.
const ACK_MESSAGE: u16 = 1;

/// Length of `struct nlmsghdr`.
const HEADER_LENGTH: usize = 16;

/// Netlink socket of the namespace in which it was opened. Several threads may share it.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    exchange: Mutex<Exchange>,
}

#[derive(Debug)]
struct Exchange {
    sequence: u32,
    buffer: Vec<u8>,
}

/// Message to be sent: type, flags, and the payload after the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) payload: Vec<u8>,
}

impl Message {
    /// Returns a message as the library writes it.
    pub(super) fn of(message: &RouteNetlinkMessage, flags: u16) -> Self {
        let mut payload = vec![0; NetlinkSerializable::buffer_len(message)];
        message.serialize(&mut payload);
        Self { kind: message.message_type(), flags, payload }
    }
}

/// Message of an answer: type, and the payload after the header.
pub(super) struct Answer {
    pub(super) kind: u16,
    pub(super) payload: Vec<u8>,
}

/// End of one attempt at a dump.
#[derive(PartialEq)]
enum Ending {
    Whole,
    Interrupted,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket {
    /// Opens a socket; `None` is NETLINK_ROUTE, number 0. `groups` are multicast groups as a mask
    /// of `1 << (RTNLGRP - 1)`.
    pub(super) fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let fd =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_TIME_MAX))?;
        explain_errors(&fd);
        let buffer = vec![0; RECEIVE_BUFFER];
        Ok(Self { fd, exchange: Mutex::new(Exchange { sequence: 0, buffer }) })
    }

    /// Opens a socket whose dumps have only what the request's header asks for (Linux 4.20).
    pub(super) fn open_strict() -> io::Result<Self> {
        let socket = Self::open(None, 0)?;
        switch_on(&socket.fd, libc::NETLINK_GET_STRICT_CHK);
        Ok(socket)
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Requests one change and waits until it is made.
    pub(super) fn change(
        &self,
        request: impl Display,
        message: &RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), NetlinkError> {
        self.ask(request, message, flags | NLM_F_ACK).map(drop)
    }

    /// Sends one query; `flags` say whether the answer is one message or a dump.
    pub(super) fn ask(
        &self,
        request: impl Display,
        message: &RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<Answer>, NetlinkError> {
        self.ask_raw(request, &Message::of(message, flags))
    }

    /// Dumps a whole table, named by its message type, with its fixed header.
    pub(super) fn dump(
        &self,
        request: impl Display,
        kind: u16,
        payload: &[u8],
    ) -> Result<Vec<Answer>, NetlinkError> {
        self.ask_raw(request, &Message { kind, flags: NLM_F_DUMP, payload: payload.to_vec() })
    }

    /// Sends messages in one datagram, which is done as a whole or not at all, and waits for it:
    /// the last message but one is acknowledged when all are done.
    pub(super) fn batch(
        &self,
        request: impl Display,
        batch: &[Message],
    ) -> Result<(), NetlinkError> {
        let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        exchange.sequence = exchange.sequence.wrapping_add(1);
        let answered = batch.len().saturating_sub(2);
        let mut bytes = Vec::new();
        let messages = batch.iter().enumerate().try_for_each(|(at, message)| {
            let ack = if at == answered { NLM_F_ACK } else { 0 };
            bytes.extend(bytes_of(message, exchange.sequence, NLM_F_REQUEST | ack)?);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            Ok(())
        });
        messages
            .and_then(|()| Ok(send(&self.fd, &bytes, SendFlags::empty())?))
            .map_err(|source| NetlinkError::Socket { request: request.to_string(), source })?;
        read_answers(&self.fd, &mut exchange, &mut Vec::new())
            .map(drop)
            .map_err(|failure| failure.of(&request))
    }

    /// Sends one query by a message that need not be one of the library's.
    pub(super) fn ask_raw(
        &self,
        request: impl Display,
        message: &Message,
    ) -> Result<Vec<Answer>, NetlinkError> {
        // A panic of another thread cannot leave a half exchange: answers of an older
        // sequence number are skipped.
        let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answers = Vec::new();
        for _ in 0..DUMP_ATTEMPTS_MAX {
            answers.clear();
            exchange.sequence = exchange.sequence.wrapping_add(1);
            bytes_of(message, exchange.sequence, NLM_F_REQUEST | NLM_F_ACK)
                .and_then(|bytes| Ok(send(&self.fd, &bytes, SendFlags::empty())?))
                .map_err(|source| NetlinkError::Socket { request: request.to_string(), source })?;
            let ending = read_answers(&self.fd, &mut exchange, &mut answers)
                .map_err(|failure| failure.of(&request))?;
            if ending == Ending::Whole {
                break;
            }
        }
        Ok(answers)
    }
}

/// Early end of an answer, before the request is known for the error.
enum Failure {
    Refused { source: io::Error, explanation: String },
    Socket(io::Error),
    Malformed(String),
}

impl Failure {
    fn of(self, request: &impl Display) -> NetlinkError {
        let request = request.to_string();
        match self {
            Self::Refused { source, explanation } => {
                NetlinkError::Refused { request, source, explanation }
            }
            Self::Socket(source) => NetlinkError::Socket { request, source },
            Self::Malformed(problem) => NetlinkError::Malformed { request, problem },
        }
    }
}

/// Returns a message as it is sent, with more flags than its own.
fn bytes_of(message: &Message, sequence: u32, flags: u16) -> io::Result<Vec<u8>> {
    let mut header = NetlinkHeader::default();
    let length = HEADER_LENGTH + message.payload.len();
    header.length = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
    header.message_type = message.kind;
    header.flags = message.flags | flags;
    header.sequence_number = sequence;
    let mut bytes = vec![0; length];
    header.emit(&mut bytes[..HEADER_LENGTH]);
    bytes[HEADER_LENGTH..].copy_from_slice(&message.payload);
    Ok(bytes)
}

fn read_answers(
    fd: &OwnedFd,
    exchange: &mut Exchange,
    answers: &mut Vec<Answer>,
) -> Result<Ending, Failure> {
    let mut ending = Ending::Whole;
    loop {
        let datagram =
            receive(fd, &mut exchange.buffer, RecvFlags::empty()).map_err(Failure::Socket)?;
        for message in messages(datagram) {
            let message = message.map_err(Failure::Malformed)?;
            if message.sequence_number() != exchange.sequence {
                continue;
            }
            if message.flags() & NLM_F_DUMP_INTR != 0 {
                ending = Ending::Interrupted;
            }
            let payload = message.payload();
            match message.message_type() {
                NLMSG_DONE | NLMSG_ERROR => {
                    acknowledged(payload, message.message_type(), message.flags())?;
                    return Ok(ending);
                }
                kind => answers.push(Answer { kind, payload: payload.to_vec() }),
            }
        }
    }
}

/// Reads one datagram; never waits longer than [`ANSWER_TIME_MAX`].
pub(super) fn receive<'buffer>(
    fd: &OwnedFd,
    buffer: &'buffer mut [u8],
    flags: RecvFlags,
) -> io::Result<&'buffer [u8]> {
    let room = buffer.len();
    let (_, length) = loop {
        match recv(fd, &mut *buffer, flags | RecvFlags::TRUNC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    if length > room {
        let problem = format!("a message of {length} bytes does not fit into {room}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(&buffer[..length])
}

/// Returns the messages of a datagram, in order.
pub(super) fn messages(
    mut datagram: &[u8],
) -> impl Iterator<Item = Result<NetlinkBuffer<&[u8]>, String>> {
    std::iter::from_fn(move || {
        if datagram.is_empty() {
            return None;
        }
        match NetlinkBuffer::new_checked(datagram) {
            Ok(message) => {
                let length = message.length() as usize;
                // Messages begin at multiples of four (NLMSG_ALIGN).
                datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
                Some(Ok(message))
            }
            Err(error) => {
                datagram = &[];
                Some(Err(error.to_string()))
            }
        }
    })
}

/// Reads the end of an exchange: `int error`, zero when done, then an echo and attributes.
fn acknowledged(payload: &[u8], kind: u16, flags: u16) -> Result<(), Failure> {
    let code = match payload.first_chunk() {
        Some(code) => i32::from_ne_bytes(*code),
        // A dump may end without a code.
        None if kind == NLMSG_DONE => 0,
        None => return Err(Failure::Malformed("an error without a code".to_owned())),
    };
    if code >= 0 {
        return Ok(());
    }
    let explanation = explanation(&payload[4..], kind, flags).unwrap_or_default();
    Err(Failure::Refused { source: io::Error::from_raw_os_error(-code), explanation })
}

fn explanation(rest: &[u8], kind: u16, flags: u16) -> Option<String> {
    if flags & ACK_HAS_ATTRIBUTES == 0 {
        return None;
    }
    let echo = match kind {
        NLMSG_DONE => 0,
        _ if flags & ACK_CAPPED != 0 => HEADER_LENGTH,
        _ => usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?.next_multiple_of(4),
    };
    NlasIterator::new(rest.get(echo..)?)
        .flatten()
        .find(|attribute| attribute.kind() == ACK_MESSAGE)
        .map(|attribute| {
            String::from_utf8_lossy(attribute.value()).trim_end_matches('\0').to_owned()
        })
}

/// Enables the kernel's own explanation of each error (Linux 4.12). Without it errors are bare
/// numbers, so a refusal of the option is ignored.
fn explain_errors(fd: &OwnedFd) {
    for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
        switch_on(fd, option);
    }
}

/// Switches an option of the socket on, where the kernel has it.
fn switch_on(fd: &OwnedFd, option: libc::c_int) {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open for the whole call, the value is one initialised
    // c_int on this stack frame, and the length given is its size.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// Compares messages with golden bytes, in hexadecimal.
#[cfg(test)]
pub(super) fn same(messages: &[Message], golden: &[(u16, u16, &str)]) {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let found = messages.iter().map(|it| (it.kind, it.flags, hex(&it.payload)));
    let golden = golden.iter().map(|(kind, flags, bytes)| (*kind, *flags, (*bytes).to_owned()));
    assert_eq!(found.collect::<Vec<_>>(), golden.collect::<Vec<_>>());
}
