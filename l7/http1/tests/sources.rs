//! Tests that each refusal has its sentence of an RFC, and that docs/reference/http1.md has all of them.

use http1::{Error, Reason, Side, refusal};

const REFERENCE: &str = include_str!("../../../docs/reference/http1.md");

/// All reasons with the side on which they occur; `None` for both.
const ALL: [(Reason, Option<Side>); 54] = {
    use Reason::*;
    const REQUEST: Option<Side> = Some(Side::Request);
    const RESPONSE: Option<Side> = Some(Side::Response);
    [
        (LineEnds, None),
        (BareLf, None),
        (BareCr, None),
        (EmptyLine, None),
        (Method, REQUEST),
        (MethodTooLong, REQUEST),
        (RequestLine, REQUEST),
        (TargetTooLong, REQUEST),
        (TargetByte, REQUEST),
        (TargetForm, REQUEST),
        (TargetAuthority, REQUEST),
        (TargetUser, REQUEST),
        (Http09, REQUEST),
        (Http2Preface, REQUEST),
        (VersionUnknown, None),
        (Version, None),
        (StatusLine, RESPONSE),
        (StatusLineTooLong, RESPONSE),
        (ObsFold, REQUEST),
        (SpaceInFront, None),
        (NoColon, None),
        (NameEmpty, None),
        (SpaceBeforeColon, REQUEST),
        (NameByte, None),
        (ValueByte, None),
        (FieldTooLong, None),
        (FieldsTooLong { limit: 1 }, None),
        (FieldsTooMany { limit: 1 }, None),
        (HostMissing, REQUEST),
        (HostRepeated, REQUEST),
        (Host, REQUEST),
        (HostDisagrees, REQUEST),
        (LengthAndCoding, None),
        (LengthRepeated, None),
        (Length, None),
        (Coding, None),
        (CodingNotChunked, None),
        (CodingRepeated, None),
        (CodingUnknown, None),
        (CodingInHttp10, None),
        (BodyForbidden, REQUEST),
        (ConnectionOption, None),
        (ChunkSize, None),
        (ChunkSizeTooLarge, None),
        (ChunkExtension, None),
        (ChunkLineTooLong, None),
        (ChunkExtensionsTooLong, None),
        (ChunkEnd, None),
        (TrailerForbidden, REQUEST),
        (Unsolicited, RESPONSE),
        (SwitchUnasked, RESPONSE),
        (InterimTooMany, RESPONSE),
        (IncompleteHead, None),
        (IncompleteBody, None),
    ]
};

#[test]
fn every_refusal_names_a_sentence_that_the_reference_has() {
    let mut missing = Vec::new();
    for (reason, side) in ALL {
        let sides = side.map_or(vec![Side::Request, Side::Response], |side| vec![side]);
        for side in sides {
            let error = Error { side, offset: 7, reason };
            let source = error.source();
            assert!(source.section.starts_with("RFC 9"), "{reason:?}");
            let text = String::from_utf8(refusal(error)).unwrap();
            assert!(text.contains(&format!("{}: {}", source.section, source.sentence)), "{text}");
            let section = source.section.replace(" section ", " ").replace(" sections ", " ");
            for part in [&*section, source.sentence] {
                if !REFERENCE.contains(part) {
                    missing.push(format!("{reason:?}: {part}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "docs/reference/http1.md lacks\n{}", missing.join("\n"));
}
