//! Names of the subprograms that code may call; `host` has their code.

/// Subprogram that the compiler provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subprogram {
    /// `memory.copy`: destination, source, length; returns 0, [`OUTSIDE`](super::host::OUTSIDE) or
    /// [`SPENT`](super::host::SPENT).
    MemoryCopy,
    /// `memory.fill`: destination, byte, length; returns the same.
    MemoryFill,
    /// `packet_load`
    PacketLoad,
    /// `packet_store`
    PacketStore,
    /// `packet_resize_head`
    ResizeHead,
    /// `packet_resize_tail`
    ResizeTail,
    /// Padding of the packet up to the module's farthest access.
    Pad,
    /// `event`
    Event,
    /// `packet_send`
    Send,
    /// `message_send`
    Message,
}

impl Subprogram {
    /// List of all subprograms.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 10] = [
        Self::MemoryCopy,
        Self::MemoryFill,
        Self::PacketLoad,
        Self::PacketStore,
        Self::ResizeHead,
        Self::ResizeTail,
        Self::Pad,
        Self::Event,
        Self::Send,
        Self::Message,
    ];

    /// Returns the subprogram's name in BTF.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::MemoryCopy => "tam_memory_copy",
            Self::MemoryFill => "tam_memory_fill",
            Self::PacketLoad => "tam_packet_load",
            Self::PacketStore => "tam_packet_store",
            Self::ResizeHead => "tam_resize_head",
            Self::ResizeTail => "tam_resize_tail",
            Self::Pad => "tam_pad",
            Self::Event => "tam_event",
            Self::Send => "tam_send",
            Self::Message => "tam_message",
        }
    }

    /// Returns the number of scalar arguments after the context.
    pub(crate) const fn scalars(self) -> u32 {
        match self {
            Self::Pad => 0,
            Self::ResizeHead | Self::ResizeTail => 1,
            Self::Message => 2,
            _ => 3,
        }
    }
}
