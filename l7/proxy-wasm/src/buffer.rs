//! Edit operation of a module on a buffer.

/// Replaces `size` bytes at `start` with `value`; positions after the end of the buffer are
/// clamped. So `(0, 0)` prepends, and a `start` at or after the end appends. Returns false without
/// a change if the buffer would be longer than `length_max`.
pub fn edit(
    buffer: &mut Vec<u8>,
    start: usize,
    size: usize,
    value: &[u8],
    length_max: usize,
) -> bool {
    let length = buffer.len();
    let start = start.min(length);
    let end = start.saturating_add(size).min(length);
    let edited = length - (end - start) + value.len();
    if edited > length_max && edited > length {
        return false;
    }
    buffer.splice(start..end, value.iter().copied());
    true
}

#[cfg(test)]
mod tests {
    use super::edit;
    use proptest::prelude::*;

    #[test]
    fn the_specs_cases() {
        let cases: [(usize, usize, &[u8], &[u8]); 7] = [
            (0, 0, b"x", b"xabcd"),
            (4, 0, b"x", b"abcdx"),
            (usize::MAX, 0, b"x", b"abcdx"),
            (usize::MAX, usize::MAX, b"x", b"abcdx"),
            (1, 2, b"x", b"axd"),
            (0, usize::MAX, b"x", b"x"),
            (2, 0, b"x", b"abxcd"),
        ];
        for (start, size, value, expected) in cases {
            let mut buffer = b"abcd".to_vec();
            assert!(edit(&mut buffer, start, size, value, 100));
            assert_eq!(buffer, expected, "{start} {size}");
        }
    }

    #[test]
    fn an_edit_beyond_the_limit_changes_nothing() {
        let mut buffer = b"abcd".to_vec();
        assert!(!edit(&mut buffer, 0, 1, b"xyz", 5));
        assert_eq!(buffer, b"abcd");
        assert!(edit(&mut buffer, 0, 2, b"x", 2), "it becomes shorter, though not short enough");
    }

    proptest! {
        #[test]
        fn edits_equal_those_of_slices(
            buffer: Vec<u8>, start in 0_usize..40, size in 0_usize..40, value: Vec<u8>,
        ) {
            let head: Vec<u8> = buffer.iter().copied().take(start).collect();
            let tail: Vec<u8> = buffer.iter().copied().skip(start + size).collect();
            let expected = [head, value.clone(), tail].concat();
            let mut edited = buffer;
            prop_assert!(edit(&mut edited, start, size, &value, usize::MAX));
            prop_assert_eq!(edited, expected);
        }
    }
}
