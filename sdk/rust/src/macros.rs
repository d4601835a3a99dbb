//! Macros that make a crate a module: exports, custom section, counters.

/// Makes the crate a module: exports its hooks and embeds the manifest `module.toml`, which is in
/// the same folder as `Cargo.toml`, in a custom section.
///
/// `on_packet` is required; the others are optional, in this order.
///
/// ```text
///  tam::module! {
///      on_packet: on_packet,   // fn(&mut Packet<'_>) -> Verdict
///      on_start: on_start,     // fn() -> Result<(), u16>
///      on_timer: on_timer,     // fn()
///      on_message: on_message, // fn(&[u8]) -> Result<(), u16>
///      on_memory_low: shed,    // fn(used: u32, most: u32), in KiB of its session's memory
///      on_queue: on_queue,     // fn(tam::Queue<'_>), enabled by tam::queue_watch
///  }
/// ```
#[macro_export]
macro_rules! module {
    (
        on_packet: $on_packet:path
        $(, on_start: $on_start:path)?
        $(, on_timer: $on_timer:path)?
        $(, on_message: $on_message:path)?
        $(, on_memory_low: $on_memory_low:path)?
        $(, on_queue: $on_queue:path)?
        $(,)?
    ) => {
        const _: () = {
            // Only a static: a constant would be in the module's memory too.
            #[allow(dead_code)]
            #[cfg_attr(target_arch = "wasm32", unsafe(link_section = "tamandua"))]
            static MANIFEST: [u8; {
                include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/module.toml")).len()
            }] = *include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/module.toml"));

            // Not called in native builds, but keeps the service's functions in use.
            #[allow(dead_code)]
            #[cfg_attr(target_arch = "wasm32", unsafe(export_name = "on_packet"))]
            extern "C" fn tam_on_packet() -> i32 {
                #[cfg(target_arch = "wasm32")]
                return $crate::expansion::run_on_packet($on_packet);
                // Checks the types in native builds.
                #[cfg(not(target_arch = "wasm32"))]
                {
                    let _: fn(&mut $crate::Packet<'_>) -> $crate::Verdict = $on_packet;
                    0
                }
            }

            $(
                // Not called in native builds, but keeps the service's functions in use.
                #[allow(dead_code)]
                #[cfg_attr(target_arch = "wasm32", unsafe(export_name = "on_start"))]
                extern "C" fn tam_on_start() -> i32 {
                    $crate::expansion::start_result($on_start())
                }
            )?

            $(
                // Not called in native builds, but keeps the service's functions in use.
                #[allow(dead_code)]
                #[cfg_attr(target_arch = "wasm32", unsafe(export_name = "on_timer"))]
                extern "C" fn tam_on_timer() {
                    $on_timer();
                }
            )?

            $(
                // Not called in native builds, but keeps the service's functions in use.
                #[allow(dead_code)]
                #[cfg_attr(target_arch = "wasm32", unsafe(export_name = "on_message"))]
                extern "C" fn tam_on_message(length: i32) -> i32 {
                    #[cfg(target_arch = "wasm32")]
                    return $crate::expansion::run_on_message(length, $on_message);
                    #[cfg(not(target_arch = "wasm32"))]
                    {
                        let _ = length;
                        $crate::expansion::message_result($on_message(&[]))
                    }
                }
            )?

            $(
                // Not called in native builds, but keeps the service's functions in use.
                #[allow(dead_code)]
                #[cfg_attr(target_arch = "wasm32", unsafe(export_name = "on_memory_low"))]
                extern "C" fn tam_on_memory_low(used: u32, most: u32) {
                    $on_memory_low(used, most);
                }
            )?

            $(
                // Not called in native builds, but keeps the service's functions in use.
                #[allow(dead_code)]
                #[cfg_attr(target_arch = "wasm32", unsafe(export_name = "on_queue"))]
                extern "C" fn tam_on_queue(what: u32, value: u32) {
                    #[cfg(target_arch = "wasm32")]
                    $crate::expansion::run_on_queue(what, value, $on_queue);
                    #[cfg(not(target_arch = "wasm32"))]
                    {
                        let _ = what;
                        $on_queue($crate::Queue::Short(value));
                    }
                }
            )?
        };
    };
}

/// Defines counters: each is a [`Counter`](crate::Counter) that `tam stats`
/// shows under its name (letters a-z, digits, `_` and `-`; at most 32).
///
/// ```
/// tam::counters! {
///     /// Packets that came.
///     pub static PACKETS = "packets";
///     /// Their bytes.
///     static BYTES = "bytes";
/// }
/// PACKETS.add(1);
/// BYTES.add(64);
/// assert_eq!(PACKETS.value(), 1);
/// ```
#[macro_export]
macro_rules! counters {
    ($($(#[$attribute:meta])* $visibility:vis static $name:ident = $shown:literal;)+) => {
        $(
            $(#[$attribute])*
            #[cfg_attr(target_arch = "wasm32", unsafe(export_name = concat!("tam_counter_", $shown)))]
            $visibility static $name: $crate::Counter = $crate::Counter::new();
        )+
    };
}

/// Declares the state that the next version of the module takes over: [`State`](crate::State)s of
/// [`Plain`](crate::Plain) values, once and in this order. Counters are kept in any case. A version
/// whose states have another total length does not take them; a version with another layout of the
/// same length must have another `state_version`.
///
/// ```
/// static SEEN: tam::State<[u64; 256]> = tam::State::new([0; 256]);
/// tam::keep!(SEEN);
/// ```
#[macro_export]
macro_rules! keep {
    ($($state:path),+ $(,)?) => {
        const _: () = {
            // Not called in native builds, but keeps the service's functions in use.
            #[allow(dead_code)]
            #[cfg_attr(target_arch = "wasm32", unsafe(export_name = "state_out"))]
            extern "C" fn tam_state_out() -> i32 {
                let mut code = 0;
                $(
                    if code == 0 {
                        code = $crate::expansion::hand_over(&$state);
                    }
                )+
                code
            }

            // Not called in native builds, but keeps the service's functions in use.
            #[allow(dead_code)]
            #[cfg_attr(target_arch = "wasm32", unsafe(export_name = "state_in"))]
            extern "C" fn tam_state_in(length: i32) -> i32 {
                let known = 0 $(+ $state.length())+;
                let mut code = i32::from(usize::try_from(length) != Ok(known));
                $(
                    if code == 0 {
                        code = $crate::expansion::take_over(&$state);
                    }
                )+
                code
            }
        };
    };
}
