//! The plot of a figure, as SVG; it measures nothing.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{Compared, Point};

/// What the x axis shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// Offered load.
    Offered,
    /// Packet size.
    Length,
}

impl Axis {
    fn label(self) -> &'static str {
        match self {
            Self::Offered => "offered load, Mbit/s",
            Self::Length => "packet size, bytes",
        }
    }

    fn of(self, point: &Point) -> f64 {
        match self {
            Self::Offered => point.offered,
            Self::Length => point.length as f64,
        }
    }
}

const SIZE: (u32, u32) = (900, 620);
/// Pixels for the paper's values below the plot.
const CAPTION_HEIGHT: u32 = 130;
const CAPTION_LINE: i32 = 18;
/// Room above the highest point.
const HEADROOM: f64 = 1.15;

/// Draws all curves, and the paper's values beside ours as text below.
pub(super) fn draw(
    path: &Path,
    title: &str,
    axis: Axis,
    points: &[Point],
    compared: &[Compared],
) -> Result<()> {
    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
    curves(&root, title, axis, points, compared)
        .map_err(|error| anyhow!("drawing {}: {error}", path.display()))?;
    drop(root);
    std::fs::write(path, text).map_err(|error| anyhow!("writing {}: {error}", path.display()))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn curves(
    root: &Area<'_>,
    title: &str,
    axis: Axis,
    points: &[Point],
    compared: &[Compared],
) -> Result<(), Box<dyn std::error::Error>> {
    root.fill(&WHITE)?;
    let (above, below) = root.split_vertically(SIZE.1 - CAPTION_HEIGHT);
    let largest = |of: &dyn Fn(&Point) -> f64| points.iter().map(of).fold(1.0, f64::max);
    let (x_max, y_max) = (largest(&|p| axis.of(p)), largest(&|p| p.throughput) * HEADROOM);
    let mut chart = ChartBuilder::on(&above)
        .caption(title, ("sans-serif", 20))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..x_max, 0.0..y_max)?;
    chart
        .configure_mesh()
        .x_desc(axis.label())
        .y_desc("throughput, Mbit/s")
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| format!("{value:.0}"))
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
            .map(|point| (axis.of(point), point.throughput))
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
    for (at, Compared { what, unit, paper, ours }) in compared.iter().enumerate() {
        let ours = ours.map_or_else(|| "none".to_owned(), |ours| format!("{ours:.2} {unit}"));
        let line = format!("{what}: paper {paper:.2}, here {ours}");
        let place = (80, 5 + CAPTION_LINE * i32::try_from(at)?);
        below.draw(&Text::new(line, place, ("sans-serif", 14)))?;
    }
    root.present()?;
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
            offered,
            throughput,
        };
        let points = [point("1 pass", 10.0, 10.0), point("2 passes", 10.0, 8.0)];
        let compared =
            [Compared { what: "best".to_owned(), unit: "ratio", paper: 0.8, ours: Some(0.7) }];
        draw(&path, "amnet-3", Axis::Offered, &points, &compared).unwrap();
        let svg = std::fs::read_to_string(path).unwrap();
        for text in ["1 pass", "2 passes", "best: paper 0.80, here 0.70 ratio", "offered load"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
