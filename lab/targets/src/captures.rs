//! Any bytes as a capture, as `tam run` reads one: reading ends, and each fault names its position.
//!
//! The reader is included as a file: the command line is no library.

use std::io::Cursor;

#[path = "../../../cli/src/commands/run/reader.rs"]
mod reader;

use reader::Reader;

pub fn read(bytes: &[u8]) {
    let mut reader = match Reader::new(Cursor::new(bytes)) {
        Ok(reader) => reader,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    // Each frame takes at least the eight bytes of a header.
    for _ in 0..=bytes.len() / 8 {
        match reader.next_frame() {
            Some(Ok(frame)) => assert!(frame.bytes.len() <= bytes.len()),
            Some(Err(reason)) => return assert!(!reason.is_empty()),
            None => return,
        }
    }
    panic!("a capture of {} bytes does not end", bytes.len());
}

/// Returns a pcap of two packets in either byte order, and a pcapng with an option of its own.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut little = Vec::new();
    little.extend([
        0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0,
    ]);
    let mut big =
        vec![0xa1, 0xb2, 0x3c, 0x4d, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 1];
    for number in 1..=2_u32 {
        little.extend([number, 7, 20, 60].map(u32::to_le_bytes).as_flattened());
        little.extend([number as u8; 20]);
        big.extend([number, 7, 20, 60].map(u32::to_be_bytes).as_flattened());
        big.extend([number as u8; 20]);
    }
    let mut next = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let length = (body.len() + 12) as u32;
        next.extend(kind.to_le_bytes());
        next.extend(length.to_le_bytes());
        next.extend(body);
        next.extend(length.to_le_bytes());
    };
    block(0x0a0d_0d0a, &[&[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0][..], &[0xff; 8]].concat());
    // Ethernet, snapshot length 0, if_tsresol 9, the end of options.
    block(1, &[1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    block(6, &[[0_u32, 0, 5, 20, 60].map(u32::to_le_bytes).as_flattened(), &[3; 20]].concat());
    vec![little, big, next]
}
