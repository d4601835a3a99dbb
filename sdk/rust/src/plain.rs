//! Plain values: types without padding, for which every byte pattern is valid.

/// Type for which every byte pattern is a valid value, and that has no padding: its bytes can be
/// handed over from one version of a module to another.
///
/// Numbers and arrays of them are plain; [`plain!`](crate::plain) defines plain structs.
///
/// # Safety
/// A manual implementation must guarantee both properties.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain_numbers {
    ($($number:ty),+) => {
        $(
            // SAFETY: every bit pattern is a number, and there is no padding.
            unsafe impl Plain for $number {}
        )+
    };
}

plain_numbers!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, ());

// SAFETY: elements are contiguous, without gaps.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Defines a plain struct: its fields are [`Plain`], and leave no gaps between them (a gap does not
/// compile; put larger fields first, or name the gap).
///
/// ```
/// tam::plain! {
///     /// One flow.
///     pub struct Flow {
///         pub packets: u64,
///         pub address: [u8; 4],
///         pub port: u16,
///         pub unused: u16,
///     }
/// }
/// static FLOWS: tam::State<[Flow; 8]> = tam::State::new([Flow::ZERO; 8]);
/// FLOWS.with(|flows| flows[0].packets += 1);
/// ```
#[macro_export]
macro_rules! plain {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$of_field:meta])* $seen:vis $field:ident: $type:ty),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        $visibility struct $name {
            $($(#[$of_field])* $seen $field: $type),+
        }

        // SAFETY: every field is plain, `repr(C)` keeps the order, and the assertion below excludes
        // gaps.
        unsafe impl $crate::Plain for $name where $($type: $crate::Plain),+ {}

        const _: () = assert!(
            size_of::<$name>() == 0 $(+ size_of::<$type>())+,
            "there are gaps between the fields"
        );

        impl $name {
            /// Value with all bytes zero.
            #[allow(dead_code)]
            // SAFETY: every byte pattern is a value, and so is zero.
            $visibility const ZERO: Self = unsafe { core::mem::zeroed() };
        }
    };
}

/// Returns the bytes of a value.
pub(crate) fn bytes_of<T: Plain>(value: &mut T) -> &mut [u8] {
    // SAFETY: the type is plain, so its bytes can be read, and any bytes written make a valid
    // value; the borrow is the value's own.
    unsafe { core::slice::from_raw_parts_mut(core::ptr::from_mut(value).cast(), size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::plain! {
        struct Pair {
            large: u32,
            small: u16,
            unused: [u8; 2],
        }
    }

    #[test]
    fn a_struct_is_its_bytes() {
        let mut pair = Pair { large: 0x0403_0201, small: 0x0605, unused: [7, 8] };
        assert_eq!(bytes_of(&mut pair), [1, 2, 3, 4, 5, 6, 7, 8]);
        bytes_of(&mut pair)[4] = 9;
        assert_eq!((pair.large, pair.small, pair.unused), (0x0403_0201, 0x0609, [7, 8]));
        assert_eq!(Pair::ZERO.large, 0);
    }
}
