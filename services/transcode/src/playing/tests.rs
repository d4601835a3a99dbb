//! Tests of pictures in and frames out, while the device changes its choice.

use super::*;
use crate::picture::written;
use proptest::prelude::*;

fn choice(settings: &[(&str, &str)]) -> Choice {
    Choice::default().with(settings.iter().copied()).unwrap()
}

fn picture(pixels: Pixels, change: u16, time_ms: u32) -> Vec<u8> {
    let bytes = match pixels {
        Pixels::Grey => vec![255; 16 * 16],
        Pixels::Rgb => vec![255; 16 * 16 * 3],
        Pixels::Jpeg => b"jpeg".to_vec(),
    };
    let size = Size { width: 16, height: 16 };
    let left_out = false;
    written(&Picture { size, pixels, left_out, change, time_ms, bytes: &bytes })
}

/// Returns the heads of frames: palette, change, dropped, flags.
fn heads(mut out: &[u8]) -> Vec<(u8, u16, u16, u8)> {
    let mut heads = Vec::new();
    while let Some((head, rest)) = out.split_first_chunk::<HEAD_LENGTH>() {
        assert_eq!(head[..2], *b"TF");
        let length = u32::from_be_bytes(head[12..16].try_into().unwrap()) as usize;
        let two = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        heads.push((head[6], two(16), two(18), head[7]));
        out = &rest[length..];
    }
    assert!(out.is_empty());
    heads
}

fn shown(playing: &mut Playing, part: &[u8]) -> (Shown, Vec<(u8, u16, u16, u8)>) {
    let mut out = Vec::new();
    let shown = playing.show(part, &mut out);
    (shown, heads(&out))
}

#[test]
fn a_change_of_the_module_alone_is_there_with_the_next_picture() {
    let mut playing = Playing::new(choice(&[]));
    let grey = |time| picture(Pixels::Grey, 0, time);
    assert_eq!(shown(&mut playing, &grey(0)).1, [(3, 0, 0, 0)]);
    let bw = choice(&[("palette", "bw"), ("layout", "pages")]);
    assert_eq!(playing.plan(&bw), Ok(None));
    assert_eq!(playing.change(bw, false), 1);
    assert_eq!(shown(&mut playing, &grey(1)).1, [(1, 1, 0, 2)]);
}

#[test]
fn pictures_under_way_keep_the_old_choice_until_one_follows_the_change() {
    let mut playing = Playing::new(choice(&[]));
    let rgb = choice(&[("palette", "rgb332")]);
    let argument = playing.plan(&rgb).unwrap().unwrap();
    assert!(argument.ends_with("pixels=rgb24"), "{argument}");
    assert_eq!(playing.change(rgb, true), 1);
    // After it, a change without the node: it takes effect together with the first one, not before.
    let dithered = choice(&[("palette", "rgb332"), ("dither", "floyd")]);
    assert_eq!(playing.plan(&dithered), Ok(None));
    assert_eq!(playing.change(dithered, false), 2);
    let part =
        [picture(Pixels::Grey, 0, 0), picture(Pixels::Grey, 0, 1), picture(Pixels::Rgb, 1, 2)];
    let (all, heads) = shown(&mut playing, &part.concat());
    assert_eq!(heads, [(3, 0, 0, 0), (3, 0, 0, 0), (6, 2, 0, 0)]);
    assert_eq!(all, Shown { frames: 3, ..Shown::default() });
}

#[test]
fn a_picture_that_follows_several_changes_follows_the_last() {
    let mut playing = Playing::new(choice(&[]));
    for (at, size) in ["32x32", "64x64", "16x16"].iter().enumerate() {
        let next = choice(&[("size", size)]);
        assert!(playing.plan(&next).unwrap().is_some());
        assert_eq!(usize::from(playing.change(next, true)), at + 1);
    }
    let part = [picture(Pixels::Grey, 1, 0), picture(Pixels::Grey, 3, 1)].concat();
    assert_eq!(shown(&mut playing, &part).1, [(3, 1, 0, 0), (3, 3, 0, 0)]);
}

#[test]
fn pending_changes_wait_for_pictures_and_are_limited() {
    let mut playing = Playing::new(choice(&[]));
    let sizes: Vec<Choice> =
        (0..9).map(|at| choice(&[("size", &format!("{}x16", 16 + at))])).collect();
    for next in &sizes[..CHANGES_WAITING_MAX] {
        assert!(playing.plan(next).is_ok());
        playing.change(next.clone(), true);
    }
    assert_eq!(playing.plan(&sizes[8]), Err(CannotChange::TooMany));
    shown(&mut playing, &picture(Pixels::Grey, 1, 0));
    assert!(playing.plan(&sizes[8]).is_ok());
    let mjpeg = choice(&[("format", "mjpeg")]);
    assert_eq!(playing.plan(&mjpeg), Err(CannotChange::Format));
}

#[test]
fn change_numbers_wrap_around() {
    let mut playing = Playing::new(choice(&[]));
    for at in 0..70_000u32 {
        let size = if at % 2 == 0 { "32x32" } else { "16x16" };
        playing.change(choice(&[("size", size), ("palette", "grey8")]), true);
        let change = (at + 1) as u16;
        let (_, heads) = shown(&mut playing, &picture(Pixels::Grey, change, at));
        assert_eq!(heads[0].1, change);
    }
}

#[test]
fn the_byte_rate_leaves_pictures_out_and_frames_say_how_many() {
    // A frame of 16 x 16 greys has 148 bytes: 1,184 bits. 8 kbit/s hold 2,000.
    let mut playing = Playing::new(choice(&[("kbits", "8")]));
    let part: Vec<u8> = (0..8).flat_map(|at| picture(Pixels::Grey, 0, at * 50)).collect();
    let (all, heads) = shown(&mut playing, &part);
    assert_eq!(heads.iter().map(|it| it.2).collect::<Vec<_>>(), [0, 0, 0, 1, 2]);
    assert_eq!((all.frames, all.left_out), (5, 3));
    playing.change(choice(&[]), false);
    let (_, heads) = shown(&mut playing, &picture(Pixels::Grey, 0, 400));
    assert_eq!(heads, [(3, 1, 0, 0)]);
}

#[test]
fn what_the_node_left_out_is_said_with_the_next_frame_that_goes() {
    let mut playing = Playing::new(choice(&[("kbits", "1")]));
    let mut late = picture(Pixels::Grey, 0, 1);
    late[5] = 1;
    assert_eq!(shown(&mut playing, &picture(Pixels::Grey, 0, 0)).1.len(), 1);
    assert_eq!(shown(&mut playing, &late).1.len(), 0);
    let (_, heads) = shown(&mut playing, &picture(Pixels::Grey, 0, 60_000));
    assert_eq!(heads, [(3, 0, 1, 0x80)]);
}

#[test]
fn pictures_of_another_kind_than_was_asked_for_are_left_out() {
    let mut playing = Playing::new(choice(&[]));
    let part =
        [picture(Pixels::Rgb, 0, 0), picture(Pixels::Jpeg, 0, 1), picture(Pixels::Grey, 0, 2)];
    let (all, heads) = shown(&mut playing, &part.concat());
    assert_eq!(heads, [(3, 0, 2, 0)]);
    assert_eq!(all.left_out, 2);
}

#[test]
fn jpegs_are_sent_as_multipart_with_a_closing_boundary() {
    let mut playing = Playing::new(choice(&[("format", "mjpeg")]));
    let mut out = Vec::new();
    playing.show(&picture(Pixels::Jpeg, 0, 40), &mut out);
    playing.finish(&mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("--tamandua\r\nContent-Type: image/jpeg\r\nContent-Length: 4\r\n"));
    assert!(text.ends_with("\r\n\r\njpeg\r\n--tamandua--\r\n"), "{text}");
    let mut none = Vec::new();
    Playing::new(choice(&[])).finish(&mut none);
    assert!(none.is_empty());
}

#[test]
fn of_too_many_pictures_in_a_part_the_newest_are_sent() {
    let large = |time_ms: u32, pixels: Pixels, length: usize| {
        let size = Size { width: 400, height: 500 };
        let bytes = vec![0; length];
        written(&Picture { size, pixels, left_out: false, change: 0, time_ms, bytes: &bytes })
    };
    let mut playing = Playing::new(choice(&[("size", "400x500"), ("palette", "grey8")]));
    let part: Vec<u8> = (0..5).flat_map(|at| large(at, Pixels::Grey, 200_000)).collect();
    let mut out = Vec::new();
    let all = playing.show(&part, &mut out);
    assert_eq!((all.frames, all.left_out), (2, 3), "400,000 pixels");
    let first = u32::from_be_bytes(out[8..12].try_into().unwrap());
    assert_eq!(first, 3);
    assert_eq!(heads(&out)[0].2, 3);

    let colours = [("size", "400x450"), ("palette", "rgb332"), ("dither", "floyd")];
    let mut playing = Playing::new(choice(&colours));
    let part: Vec<u8> = (0..2).flat_map(|at| large(at, Pixels::Rgb, 600_000)).collect();
    let all = playing.show(&part, &mut Vec::new());
    assert_eq!((all.frames, all.left_out), (1, 1), "each pixel counts for two");

    let mut playing = Playing::new(choice(&[("format", "mjpeg")]));
    for (lengths, went) in [
        (&[600_000, 600_000][..], 1),
        (&[400_000, 600_000], 2),
        (&[2_000_000, 10], 1),
        (&[10, 2_000_000], 0),
    ] {
        let part: Vec<u8> =
            lengths.iter().flat_map(|length| large(0, Pixels::Jpeg, *length)).collect();
        let mut out = Vec::new();
        assert_eq!(playing.show(&part, &mut out).frames, went, "{lengths:?}");
        playing.finish(&mut out);
        assert!(out.len() <= OUTPUT_LENGTH_MAX);
    }
}

#[test]
fn what_is_no_picture_ends_a_part_and_not_the_stream() {
    let mut playing = Playing::new(choice(&[]));
    let part = [picture(Pixels::Grey, 0, 0), b"garbage".to_vec()].concat();
    let (all, heads) = shown(&mut playing, &part);
    assert_eq!((all.frames, heads.len()), (1, 1));
    assert_eq!(all.malformed.map(|it| it.at), Some(272));
    assert_eq!(shown(&mut playing, &picture(Pixels::Grey, 0, 1)).0.frames, 1);
}

proptest! {
    #[test]
    fn any_parts_and_changes_give_whole_frames(
        steps in proptest::collection::vec((0u8..5, any::<u16>(), any::<u32>(), any::<bool>()), 0..40),
    ) {
        let mut playing = Playing::new(choice(&[]));
        for (kind, change, time, node) in steps {
            let part = match kind {
                0 => picture(Pixels::Grey, change, time),
                1 => picture(Pixels::Rgb, change, time),
                2 => picture(Pixels::Jpeg, change, time),
                3 => time.to_be_bytes().repeat(9),
                _ => {
                    let palette = if node { "web216" } else { "bw" };
                    let next = choice(&[("palette", palette), ("kbits", "50")]);
                    if let Ok(argument) = playing.plan(&next) {
                        playing.change(next, argument.is_some());
                    }
                    continue;
                }
            };
            let (all, heads) = shown(&mut playing, &part);
            prop_assert_eq!(all.frames as usize, heads.len());
        }
    }
}
