//! Fuzz targets, one for each reader of untrusted bytes: each passes the bytes to the reader and
//! checks the properties that the code promises. A hang or a panic is a finding.
//!
//! ```text
//! lab/fuzz/targets/NAME.rs ─▶ libFuzzer's bytes ─┐
//!                                                ├─▶ TARGETS[NAME].run
//! tests/mutations.rs ─▶ seeds, and mutations ────┘
//! ```

#![forbid(unsafe_code)]

mod active_frames;
mod api_bodies;
mod association;
mod backup;
mod captures;
mod cell_messages;
mod encodings;
mod filters;
mod frames;
mod http1;
mod images;
mod ledger;
mod match_texts;
mod media;
mod modules;
pub mod mutation;
mod signatures;
mod stores;
mod streams;
mod toml_files;
mod trust;
mod video;

/// Fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of its folder in `lab/fuzz/seeds`, and of its libFuzzer target.
    pub name: &'static str,
    /// Reads the bytes and checks the properties.
    pub run: fn(&[u8]),
    /// Returns seeds in addition to the files in the folder of seeds.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Fuzz targets in the order of names.
pub const TARGETS: &[Target] = &[
    Target { name: "bounce_active_packet", run: active_frames::take, seeds: active_frames::seeds },
    Target { name: "check_module", run: modules::check, seeds: none },
    Target { name: "check_stream_module", run: streams::check, seeds: none },
    Target { name: "encode_body", run: encodings::encode, seeds: encodings::seeds },
    Target { name: "parse_frame", run: frames::parse, seeds: frames::seeds },
    Target { name: "parse_manifest", run: modules::manifest, seeds: none },
    Target { name: "parse_match", run: match_texts::parse, seeds: none },
    Target { name: "parse_node_file", run: toml_files::node, seeds: toml_files::node_seeds },
    Target { name: "parse_topology", run: toml_files::topology, seeds: none },
    Target { name: "pass_filter", run: filters::pass, seeds: filters::seeds },
    Target { name: "read_association", run: association::read, seeds: association::seeds },
    Target { name: "read_backup", run: backup::backup, seeds: backup::backup_seeds },
    Target { name: "read_capture", run: captures::read, seeds: captures::seeds },
    Target { name: "read_cell_message", run: cell_messages::read, seeds: cell_messages::seeds },
    Target { name: "read_header_map", run: streams::header_map, seeds: streams::map_seeds },
    Target { name: "read_http1", run: http1::read, seeds: http1::seeds },
    Target { name: "read_icy", run: media::titles, seeds: media::title_seeds },
    Target { name: "read_image", run: images::read, seeds: images::seeds },
    Target { name: "read_key", run: trust::key, seeds: trust::key_seeds },
    Target { name: "read_ledger", run: ledger::segment, seeds: ledger::segment_seeds },
    Target { name: "read_media", run: media::frames, seeds: media::frame_seeds },
    Target { name: "read_pictures", run: video::pictures, seeds: video::picture_seeds },
    Target { name: "read_receipt", run: ledger::receipt, seeds: ledger::receipt_seeds },
    Target { name: "read_request", run: api_bodies::read, seeds: api_bodies::seeds },
    Target { name: "read_signature", run: signatures::read, seeds: signatures::seeds },
    Target { name: "read_store", run: stores::read, seeds: none },
    Target { name: "read_token", run: trust::token, seeds: trust::token_seeds },
    Target { name: "read_video", run: video::stream, seeds: video::stream_seeds },
];

/// Returns the target of that name.
///
/// # Panics
/// The target does not exist: a fuzz target was renamed here only.
#[must_use]
pub fn target(name: &str) -> Target {
    *TARGETS.iter().find(|target| target.name == name).expect("a target has a name of the list")
}

fn none() -> Vec<Vec<u8>> {
    Vec::new()
}
