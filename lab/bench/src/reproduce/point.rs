//! Measured points, and their quantities: the columns of a CSV, the axes of a plot.

use std::fmt::Write as _;

use serde::Serialize;

/// Measured point, with the quantities of its figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Name of its curve.
    pub curve: String,
    /// Bytes of each frame.
    pub length: usize,
    /// Mbit/s given to the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered: Option<f64>,
    /// Mbit/s that arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<f64>,
    /// Packets per second given to the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_packets: Option<f64>,
    /// Packets per second that arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<f64>,
    /// Microseconds from source to sink: a median, or of one packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<f64>,
    /// Microseconds within which 99 % of the packets arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_p99_us: Option<f64>,
    /// Duration in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_us: Option<f64>,
    /// Number of the packet, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
    /// Seconds since the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_s: Option<f64>,
    /// Length of the queue, in packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<usize>,
    /// Objects and references that a collector visited, for each packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looked: Option<f64>,
    /// Listeners of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listeners: Option<usize>,
    /// Percent of the listeners that received the whole stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole: Option<f64>,
    /// Mbit/s from the stream's origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink: Option<f64>,
    /// Percent of a core's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
}

/// A quantity of a point: a column of the CSV, an axis of the plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    Length,
    Offered,
    Throughput,
    OfferedPackets,
    Packets,
    Delay,
    DelayP99,
    Time,
    Number,
    Seconds,
    Buffer,
    Looked,
    Percent,
    Listeners,
    Whole,
    Uplink,
}

impl Quantity {
    /// Returns the names in the CSV, and on the axis.
    pub(super) const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Length => ("length_bytes", "size, bytes"),
            Self::Offered => ("offered_mbit_s", "offered load, Mbit/s"),
            Self::Throughput => ("throughput_mbit_s", "throughput, Mbit/s"),
            Self::OfferedPackets => ("offered_packets_s", "offered load, packets/s"),
            Self::Packets => ("packets_s", "packets/s"),
            Self::Delay => ("delay_us", "source to sink, µs"),
            Self::DelayP99 => ("delay_p99_us", "source to sink, 99 %, µs"),
            Self::Time => ("time_us", "time, µs"),
            Self::Number => ("number", "packet"),
            Self::Seconds => ("at_s", "time, s"),
            Self::Buffer => ("queue_packets", "queue, packets"),
            Self::Looked => ("looked_per_packet", "looked at for each packet"),
            Self::Percent => ("percent", "% of the core"),
            Self::Listeners => ("listeners", "listeners"),
            Self::Whole => ("whole_percent", "% of them hear all"),
            Self::Uplink => ("uplink_mbit_s", "uplink, Mbit/s"),
        }
    }

    /// Returns true for a quantity of whole numbers.
    const fn is_whole(self) -> bool {
        matches!(self, Self::Length | Self::Number | Self::Buffer | Self::Listeners)
    }

    pub(super) fn of(self, point: &Point) -> Option<f64> {
        match self {
            Self::Length => Some(point.length as f64),
            Self::Offered => point.offered,
            Self::Throughput => point.throughput,
            Self::OfferedPackets => point.offered_packets,
            Self::Packets => point.packets,
            Self::Delay => point.delay_us,
            Self::DelayP99 => point.delay_p99_us,
            Self::Time => point.time_us,
            Self::Number => point.number.map(|number| number as f64),
            Self::Seconds => point.at_s,
            Self::Buffer => point.buffer.map(|packets| packets as f64),
            Self::Looked => point.looked,
            Self::Percent => point.percent,
            Self::Listeners => point.listeners.map(|listeners| listeners as f64),
            Self::Whole => point.whole,
            Self::Uplink => point.uplink,
        }
    }
}

pub(super) fn to_csv(columns: &[Quantity], points: &[Point]) -> String {
    let mut csv = String::from("curve");
    for column in columns {
        // Writing to a string cannot fail; a curve's name has at most commas.
        let _ = write!(csv, ",{}", column.names().0);
    }
    for point in points {
        let _ = write!(csv, "\n\"{}\"", point.curve);
        for column in columns {
            let digits = if column.is_whole() { 0 } else { 3 };
            let _ = match column.of(point) {
                Some(value) => write!(csv, ",{value:.digits$}"),
                None => write!(csv, ","),
            };
        }
    }
    csv.push('\n');
    csv
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_written_one_a_line() {
        let curve = "1 pass, fixed load".to_owned();
        let (offered, throughput) = (Some(40.0), Some(39.5));
        let point = Point { curve, length: 700, offered, throughput, ..Point::default() };
        let columns = [Quantity::Length, Quantity::Offered, Quantity::Throughput, Quantity::Delay];
        let csv = to_csv(&columns, &[point]);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(
            lines,
            [
                "curve,length_bytes,offered_mbit_s,throughput_mbit_s,delay_us",
                "\"1 pass, fixed load\",700,40.000,39.500,"
            ]
        );
    }
}
