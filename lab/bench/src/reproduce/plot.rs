//! The plot of a figure, as SVG; it measures nothing.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{Compared, Drawn, Panel, Point, Quantity};

const WIDTH: u32 = 900;
/// Of one plot.
const HEIGHT: u32 = 490;
const CAPTION_LINE: u32 = 18;
/// Room above the highest point: as a factor, and in powers of ten.
const HEADROOM: f64 = 1.15;
const HEADROOM_LOG: f64 = 0.3;

/// Draws all panels, one below the other, and the paper's values beside ours as text below.
pub(super) fn draw(path: &Path, title: &str, drawn: &Drawn) -> Result<()> {
    let mut text = String::new();
    let lines = drawn.compared.len() as u32 + 2;
    let plots = HEIGHT * drawn.panels.len() as u32;
    let size = (WIDTH, plots + CAPTION_LINE * lines);
    let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
    all(&root, title, plots, drawn)
        .map_err(|error| anyhow!("drawing {}: {error}", path.display()))?;
    drop(root);
    std::fs::write(path, text).map_err(|error| anyhow!("writing {}: {error}", path.display()))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn all(
    root: &Area<'_>,
    title: &str,
    plots: u32,
    drawn: &Drawn,
) -> Result<(), Box<dyn std::error::Error>> {
    root.fill(&WHITE)?;
    let (above, below) = root.split_vertically(plots);
    for (area, panel) in above.split_evenly((drawn.panels.len(), 1)).iter().zip(&drawn.panels) {
        curves(area, title, *panel, &drawn.points)?;
    }
    if drawn.panels.is_empty() {
        below.draw(&Text::new(title.to_owned(), (80, 5), ("sans-serif", 18)))?;
    }
    let first = i32::from(drawn.panels.is_empty());
    for (at, Compared { what, unit, paper, ours }) in drawn.compared.iter().enumerate() {
        let ours = ours.map_or_else(|| "none".to_owned(), |ours| format!("{ours:.2} {unit}"));
        let line = format!("{what}: paper {paper:.2}, here {ours}");
        let place = (80, 5 + CAPTION_LINE as i32 * (first + i32::try_from(at)?));
        below.draw(&Text::new(line, place, ("sans-serif", 14)))?;
    }
    root.present()?;
    Ok(())
}

/// From values to places on an axis and back.
#[derive(Clone, Copy)]
struct Scale {
    quantity: Quantity,
    is_log: bool,
}

impl Scale {
    /// None where a logarithm has no place for it.
    fn place(self, point: &Point) -> Option<f64> {
        let value = self.quantity.of(point)?;
        match self.is_log {
            true => (value > 0.0).then(|| value.log10()),
            false => Some(value),
        }
    }

    fn range(self, points: &[Point], headroom: bool) -> std::ops::Range<f64> {
        let places = || points.iter().filter_map(|point| self.place(point));
        let most = places().fold(1.0, f64::max);
        match self.is_log {
            true => places().fold(most, f64::min).floor()..most + HEADROOM_LOG,
            false if headroom => 0.0..most * HEADROOM,
            false => 0.0..most,
        }
    }

    fn label(self, place: f64) -> String {
        match self.is_log {
            // The marks stand at whole powers and between them.
            true => short(10f64.powf(place)),
            false => format!("{place:.0}"),
        }
    }
}

/// A number as people read it: 0.32, 3.2, 32, 320, 3.2 k, 3.2 M.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        1e6.. => (value / 1e6, " M"),
        1e3.. => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let decimals = if value < 0.995 { 2 } else { usize::from(value < 9.95) };
    let text = format!("{value:.decimals$}");
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

fn curves(
    area: &Area<'_>,
    title: &str,
    panel: Panel,
    points: &[Point],
) -> Result<(), Box<dyn std::error::Error>> {
    let x = Scale { quantity: panel.x, is_log: panel.log_x };
    let y = Scale { quantity: panel.y, is_log: panel.log_y };
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(x.range(points, false), y.range(points, true))?;
    chart
        .configure_mesh()
        .x_desc(panel.x.names().1)
        .y_desc(panel.y.names().1)
        .x_label_formatter(&|place| x.label(*place))
        .y_label_formatter(&|place| y.label(*place))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    // In the order of measurement, which is that of the paper's legend.
    let mut names: Vec<&str> = Vec::new();
    for point in points {
        if !names.contains(&point.curve.as_str()) {
            names.push(&point.curve);
        }
    }
    for (at, name) in names.into_iter().enumerate() {
        let color = Palette99::pick(at).to_rgba();
        let of_curve: Vec<(f64, f64)> = points
            .iter()
            .filter(|point| point.curve == name)
            .filter_map(|point| x.place(point).zip(y.place(point)))
            .collect();
        chart
            .draw_series(LineSeries::new(of_curve, color.stroke_width(2)).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_every_curve_and_the_papers_values() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.svg");
        let point = |curve: &str, offered, throughput| Point {
            curve: curve.to_owned(),
            length: 1460,
            offered: Some(offered),
            throughput: Some(throughput),
            ..Point::default()
        };
        let points = vec![point("1 pass", 10.0, 10.0), point("2 passes", 10.0, 8.0)];
        let compared =
            vec![Compared { what: "best".to_owned(), unit: "ratio", paper: 0.8, ours: Some(0.7) }];
        let panel = |y, log_x, log_y| Panel { x: Quantity::Offered, y, log_x, log_y };
        let panels =
            vec![panel(Quantity::Throughput, false, false), panel(Quantity::Length, true, true)];
        let drawn = Drawn { points, compared, columns: &[], panels, notes: Vec::new() };
        draw(&path, "amnet-3", &drawn).unwrap();
        let svg = std::fs::read_to_string(path).unwrap();
        for text in [
            "1 pass",
            "2 passes",
            "best: paper 0.80, here 0.70 ratio",
            "offered load",
            "throughput, Mbit/s",
            "size, bytes",
        ] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn a_logarithm_has_no_place_for_nothing() {
        let scale = Scale { quantity: Quantity::Delay, is_log: true };
        let point = |delay| Point { delay_us: delay, ..Point::default() };
        assert_eq!(scale.place(&point(Some(100.0))), Some(2.0));
        assert_eq!(scale.place(&point(Some(0.0))), None);
        assert_eq!(scale.place(&point(None)), None);
        assert_eq!(scale.label(3.0), "1 k");
    }

    #[test]
    fn marks_are_short() {
        let places = [-0.5, 0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 4.5, 6.5];
        let texts = ["0.32", "1", "3.2", "10", "32", "316", "1 k", "32 k", "3.2 M"];
        assert_eq!(places.map(|place| short(10f64.powf(place))), texts);
    }
}
