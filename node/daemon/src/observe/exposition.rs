//! Formats of the counters for Prometheus, and which one a client gets.
//!
//! Prometheus's own text format 0.0.4, which everything reads (`promtool`, curl), unless the
//! client prefers OpenMetrics. Both escape labels alike; they differ in the names behind `# TYPE`
//! and in comments (prometheus.io/docs/instrumenting/exposition_formats).

use api::endpoints::{METRICS_TEXT, OPEN_METRICS};
use std::fmt::Write as _;

/// Format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.0, text.
    OpenMetrics,
}

/// Quality of a media range in thousandths (RFC 9110, 12.4.2).
type Quality = u32;
const QUALITY_MOST: Quality = 1000;

impl Format {
    /// Returns the format that the values of `Accept` prefer; text where they prefer none.
    pub(crate) fn of<'a>(accepted: impl Iterator<Item = &'a str>) -> Self {
        let (mut open_metrics, mut text) = (0, 0);
        for range in accepted.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let quality = parts.find_map(quality).unwrap_or(QUALITY_MOST);
            match kind.as_str() {
                "application/openmetrics-text" => open_metrics = quality.max(open_metrics),
                "text/plain" => text = quality.max(text),
                _ => {}
            }
        }
        if open_metrics > 0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// Returns the value of `Content-Type`.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Text => METRICS_TEXT,
            Self::OpenMetrics => OPEN_METRICS,
        }
    }

    /// Returns a page of OpenMetrics in this format.
    pub(crate) fn text(self, open_metrics: String) -> String {
        match self {
            Self::OpenMetrics => open_metrics,
            Self::Text => as_text(&open_metrics),
        }
    }
}

/// Reads `q=0.5` of a media range.
fn quality(parameter: &str) -> Option<Quality> {
    let (name, value) = parameter.split_once('=')?;
    let value: f32 = value.trim().parse().ok().filter(|_| name.trim().eq_ignore_ascii_case("q"))?;
    // At most three digits have a meaning; a conversion stays within the numbers that there are.
    Some((value.clamp(0.0, 1.0) * QUALITY_MOST as f32).round() as Quality)
}

fn as_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    // A family's help comes in front of its type, which says what the family's samples are called.
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "unknown"));
            let (end, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            // Writing to a string cannot fail.
            if let Some((_, help)) = help.take().filter(|(of, _)| *of == name) {
                let _ = writeln!(text, "# HELP {name}{end} {help}");
            }
            let _ = writeln!(text, "# TYPE {name}{end} {kind}");
        } else if !line.starts_with('#') {
            let (name, rest) = line.split_at(line.find('{').unwrap_or(line.len()));
            let _ = writeln!(text, "{name}{}", rest.strip_prefix("{}").unwrap_or(rest));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_prometheus_text_unless_openmetrics_is_preferred() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                          application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                          text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accepted, expected) in [
            (&[][..], Format::Text),
            (&["*/*"], Format::Text),
            (&["text/plain"], Format::Text),
            (&["text/html, application/xhtml+xml;q=0.9"], Format::Text),
            (&["application/openmetrics-text"], Format::OpenMetrics),
            (&["Application/OpenMetrics-Text; version=1.0.0"], Format::OpenMetrics),
            (&["text/plain;q=0.5", "application/openmetrics-text; q=0.6"], Format::OpenMetrics),
            (&["text/plain;q=0.6, application/openmetrics-text;q=0.5"], Format::Text),
            (&["application/openmetrics-text;q=0"], Format::Text),
            (&["application/openmetrics-text;q=x"], Format::OpenMetrics),
            (&[prometheus], Format::OpenMetrics),
        ] {
            assert_eq!(Format::of(accepted.iter().copied()), expected, "{accepted:?}");
        }
    }

    #[test]
    fn types_have_the_names_of_their_samples() {
        let open_metrics = "\
# HELP tamandua_node The node and its version.
# TYPE tamandua_node info
tamandua_node_info{node=\"r1\",version=\"1\"} 1
# HELP tamandua_uptime_seconds Since the node started.
# TYPE tamandua_uptime_seconds gauge
# UNIT tamandua_uptime_seconds seconds
tamandua_uptime_seconds{} 3
# HELP tamandua_service_packets Packets given.
# TYPE tamandua_service_packets counter
# UNIT tamandua_service_packets packets
tamandua_service_packets_total{service=\"{} a\\\"b\"} 7
# EOF
";
        let text = "\
# HELP tamandua_node_info The node and its version.
# TYPE tamandua_node_info gauge
tamandua_node_info{node=\"r1\",version=\"1\"} 1
# HELP tamandua_uptime_seconds Since the node started.
# TYPE tamandua_uptime_seconds gauge
tamandua_uptime_seconds 3
# HELP tamandua_service_packets_total Packets given.
# TYPE tamandua_service_packets_total counter
tamandua_service_packets_total{service=\"{} a\\\"b\"} 7
";
        assert_eq!(Format::Text.text(open_metrics.to_owned()), text);
        assert_eq!(Format::OpenMetrics.text(open_metrics.to_owned()), open_metrics);
    }
}
