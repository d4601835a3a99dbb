//! Recognition of MPEG-2 video responses by their head.

/// Media types of MPEG-2 video: RFC 3555 (`MPV`, `MP2T`, `MP2P`) and RFC 2046 (`mpeg`), in lower
/// case.
const TYPES: [&str; 4] = ["video/mpeg", "video/mp2t", "video/mp2p", "video/mpv"];
/// Media type that servers use for unknown files.
const UNKNOWN: &str = "application/octet-stream";
/// Extensions of MPEG-2 video files, valid for any media type of the server.
const ENDINGS: [&str; 6] = [".m2v", ".mpg", ".mpeg", ".ts", ".m2t", ".vob"];

/// Relevant properties of a response's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    status: u16,
    content_type: String,
    is_coded: bool,
    is_part: bool,
}

impl Response {
    /// Parses fields: names in lower case, values as received.
    pub fn read<'a>(fields: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut response = Self::default();
        for (name, value) in fields {
            let text = std::str::from_utf8(value).unwrap_or_default().trim();
            match name.to_ascii_lowercase().as_str() {
                ":status" => response.status = text.parse().unwrap_or(0),
                "content-type" => {
                    let media = text.split(';').next().unwrap_or_default();
                    response.content_type = media.trim().to_ascii_lowercase();
                }
                // Includes `identity`, which is no valid coding of a response.
                "content-encoding" => response.is_coded = true,
                "content-range" => response.is_part = true,
                _ => {}
            }
        }
        response
    }

    /// Returns true if the response, for a request with this path, is a video that can be decoded.
    pub fn is_video(&self, path: &str) -> bool {
        let name = path.split('?').next().unwrap_or_default().to_ascii_lowercase();
        let content_type = self.content_type.as_str();
        let is_mpeg = TYPES.contains(&content_type)
            || (content_type == UNKNOWN && ENDINGS.iter().any(|ending| name.ends_with(ending)));
        self.status == 200 && is_mpeg && !self.is_coded && !self.is_part
    }
}

/// Fields that describe the server's bytes, and are removed for pictures.
pub const UNTRUE: [&str; 10] = [
    "content-length",
    "accept-ranges",
    "etag",
    "last-modified",
    "content-disposition",
    "content-digest",
    "repr-digest",
    "digest",
    "content-md5",
    "expires",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn is_video(fields: &[(&str, &str)], path: &str) -> bool {
        let fields = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
        Response::read(fields).is_video(path)
    }

    #[test]
    fn video_responses_are_recognised_by_content_type_or_file_name() {
        for (content_type, path, expected) in [
            ("video/mpeg", "/film", true),
            ("Video/MP2T; x=y", "/", true),
            ("video/MP2P", "/", true),
            ("video/mpv", "/", true),
            ("application/octet-stream", "/film.M2V", true),
            ("application/octet-stream", "/film.vob?x=1", true),
            ("application/octet-stream", "/film.ts", true),
            ("application/octet-stream", "/film.m2t", true),
            ("application/octet-stream", "/film.mpg", true),
            ("application/octet-stream", "/film.mpeg", true),
            ("application/octet-stream", "/film.mp4?x=.ts", false),
            ("video/mp4", "/film.mpg", false),
            ("text/html", "/film.mpg", false),
            ("", "/film.mpg", false),
        ] {
            let fields = [(":status", "200"), ("Content-Type", content_type)];
            assert_eq!(is_video(&fields, path), expected, "{content_type} {path}");
        }
    }

    #[test]
    fn partial_coded_and_error_responses_are_not_taken_for_video() {
        let video = ("content-type", "video/mpeg");
        for (fields, expected) in [
            (&[(":status", "200"), video][..], true),
            (&[(":status", "206"), video], false),
            (&[(":status", "304"), video], false),
            (&[(":status", "404"), video], false),
            (&[(":status", "x"), video], false),
            (&[video], false),
            (&[(":status", "200"), video, ("Content-Encoding", "gzip")], false),
            (&[(":status", "200"), video, ("Content-Range", "bytes 0-1/2")], false),
            (&[(":status", "200")], false),
        ] {
            assert_eq!(is_video(fields, "/film.mpg"), expected, "{fields:?}");
        }
        assert!(!Response::read([("content-type", &b"\xff"[..])]).is_video("/film.mpg"));
    }
}
