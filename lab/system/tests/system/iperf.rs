//! iperf
