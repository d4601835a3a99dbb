//! One table of (module, state, packet in, verdict, packet out), for every level.
