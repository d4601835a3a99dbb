//! The plot of a figure, as SVG; it measures nothing.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{Compared, Drawn, Marks, Panel, Point, Quantity, Straight};

const WIDTH: u32 = 900;
/// Of one plot.
const HEIGHT: u32 = 490;
const CAPTION_LINE: u32 = 18;
/// Room above the highest point: as a factor, and in powers of ten.
const HEADROOM: f64 = 1.15;
const HEADROOM_LOG: f64 = 0.3;
/// What a legend takes of a plot, at most.
const LEGEND_WIDTH: f64 = 0.4;
const LEGEND_HEIGHT: f64 = 0.3;
/// Pieces of a straight line that is bent, as one axis alone has powers of ten.
const PIECES_BENT: u32 = 50;

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
        self.at(self.quantity.of(point)?)
    }

    fn at(self, value: f64) -> Option<f64> {
        match self.is_log {
            true => (value > 0.0).then(|| value.log10()),
            false => Some(value),
        }
    }

    fn value(self, place: f64) -> f64 {
        if self.is_log { 10f64.powf(place) } else { place }
    }

    fn range(self, points: &[Point], headroom: bool) -> Range<f64> {
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
            true => short(self.value(place)),
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
    let caption = match panel.marks {
        Marks::Lines => title.to_owned(),
        Marks::Dots { curves, .. } => format!("{title}: {curves}"),
    };
    let (x_range, y_range) = (x.range(points, false), y.range(points, true));
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 20))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(x_range.clone(), y_range.clone())?;
    chart
        .configure_mesh()
        .x_desc(panel.x.names().1)
        .y_desc(panel.y.names().1)
        .x_label_formatter(&|place| x.label(*place))
        .y_label_formatter(&|place| y.label(*place))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    let mut occupied = Vec::new();
    let share = |value: f64, range: &Range<f64>| (value - range.start) / (range.end - range.start);
    for (at, (name, points)) in series(panel.marks, points).into_iter().enumerate() {
        let color = Palette99::pick(at).to_rgba();
        let places: Vec<(f64, f64)> =
            points.into_iter().filter_map(|point| x.place(point).zip(y.place(point))).collect();
        occupied.extend(places.iter().map(|(x, y)| (share(*x, &x_range), share(*y, &y_range))));
        match panel.marks {
            Marks::Lines => chart
                .draw_series(LineSeries::new(places, color.stroke_width(2)).point_size(3))?
                .label(name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
                }),
            Marks::Dots { .. } => chart
                .draw_series(
                    places.into_iter().map(|at| Circle::new(at, 2, color.mix(0.8).filled())),
                )?
                .label(name)
                .legend(move |(x, y)| Circle::new((x + 9, y), 3, color.filled())),
        };
    }
    if let Marks::Dots { beside, .. } = panel.marks {
        let places = straight(beside, (x, y), x_range);
        chart
            .draw_series(LineSeries::new(places, BLACK.stroke_width(1)))?
            .label(beside.name)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLACK));
    }
    chart
        .configure_series_labels()
        .position(emptiest(&occupied))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

/// The points of each curve that a panel shows, in the order of measurement, which is that of
/// the paper's legend.
fn series(marks: Marks, points: &[Point]) -> Vec<(&str, Vec<&Point>)> {
    let begin = match marks {
        Marks::Lines => "",
        Marks::Dots { curves, .. } => curves,
    };
    let mut series: Vec<(&str, Vec<&Point>)> = Vec::new();
    for point in points.iter().filter(|point| point.curve.starts_with(begin)) {
        match series.iter_mut().find(|(name, _)| *name == point.curve) {
            Some((_, of_curve)) => of_curve.push(point),
            None => series.push((&point.curve, vec![point])),
        }
    }
    series
}

/// The corner where a legend hides the fewest of the points, whose places are shares of the plot's
/// width and height; the upper left one if all are alike.
fn emptiest(occupied: &[(f64, f64)]) -> SeriesLabelPosition {
    let hidden = |is_right: bool, is_upper: bool| {
        let is_hidden = |(x, y): &&(f64, f64)| {
            let (x, y) = (if is_right { 1.0 - x } else { *x }, if is_upper { 1.0 - y } else { *y });
            x < LEGEND_WIDTH && y < LEGEND_HEIGHT
        };
        occupied.iter().filter(is_hidden).count()
    };
    let corners = [
        (hidden(false, true), SeriesLabelPosition::UpperLeft),
        (hidden(false, false), SeriesLabelPosition::LowerLeft),
        (hidden(true, false), SeriesLabelPosition::LowerRight),
        (hidden(true, true), SeriesLabelPosition::UpperRight),
    ];
    let first = corners.into_iter().min_by_key(|(points, _)| *points);
    first.map_or(SeriesLabelPosition::UpperLeft, |(_, corner)| corner)
}

/// Places of a straight line over a range of places.
fn straight(line: Straight, (x, y): (Scale, Scale), range: Range<f64>) -> Vec<(f64, f64)> {
    let pieces = if x.is_log == y.is_log { 1 } else { PIECES_BENT };
    let piece = (range.end - range.start) / f64::from(pieces);
    let at = |number: u32| {
        let place = range.start + piece * f64::from(number);
        Some((place, y.at(line.slope * x.value(place))?))
    };
    (0..=pieces).filter_map(at).collect()
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
        let panels = vec![
            Panel::lines(Quantity::Offered, Quantity::Throughput),
            Panel::logarithmic(Quantity::Offered, Quantity::Length),
        ];
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
    fn dots_are_of_the_curves_that_a_panel_names_beside_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.svg");
        let point = |curve: &str, length, time| Point {
            curve: curve.to_owned(),
            length,
            time_us: Some(time),
            ..Point::default()
        };
        let points = vec![
            point("plain, near", 1000, 10_000.0),
            point("coded, near", 1000, 20_000.0),
            point("coded, far", 5000, 90_000.0),
            point("coded, near", 2000, 30_000.0),
        ];
        let beside = Straight { name: "at most 800 kbit/s", slope: 10.0 };
        let marks = Marks::Dots { curves: "coded", beside };
        let of_panel = series(marks, &points);
        let counts: Vec<_> = of_panel.iter().map(|(name, all)| (*name, all.len())).collect();
        assert_eq!(counts, [("coded, near", 2), ("coded, far", 1)]);
        assert_eq!(series(Marks::Lines, &points).len(), 3);
        let panel = Panel { marks, ..Panel::logarithmic(Quantity::Length, Quantity::Time) };
        let drawn = Drawn {
            points,
            compared: Vec::new(),
            columns: &[],
            panels: vec![panel],
            notes: Vec::new(),
        };
        draw(&path, "x", &drawn).unwrap();
        let svg = std::fs::read_to_string(path).unwrap();
        assert!(["x: coded", "coded, far", "at most 800"].iter().all(|text| svg.contains(text)));
        assert!(!svg.contains("plain"));
        // Three dots, and one of each curve in the legend.
        assert_eq!(svg.matches("<circle").count(), 5);
    }

    #[test]
    fn a_legend_is_where_it_hides_the_fewest_points() {
        let corners = [(0.1, 0.9), (0.1, 0.1), (0.9, 0.1), (0.9, 0.9)];
        let at = |points: &[(f64, f64)]| format!("{:?}", emptiest(points));
        for (used, corner) in
            ["UpperLeft", "LowerLeft", "LowerRight", "UpperRight"].iter().enumerate()
        {
            assert_eq!(at(&corners[..used]), *corner);
        }
        assert_eq!(at(&[(0.5, 0.5)]), "UpperLeft");
    }

    #[test]
    fn a_line_through_the_origin_is_straight_where_both_axes_are_alike() {
        let scale = |quantity, is_log| Scale { quantity, is_log };
        let line = Straight { name: "", slope: 10.0 };
        let places = |x, y, range| {
            straight(line, (scale(Quantity::Length, x), scale(Quantity::Time, y)), range)
        };
        let powers = places(true, true, 2.0..4.0);
        assert_eq!(powers.len(), 2);
        assert!(powers.iter().all(|(x, y)| (y - x - 1.0).abs() < 1e-9));
        assert!(places(false, false, 0.0..9.0).iter().all(|(x, y)| (y - 10.0 * x).abs() < 1e-9));
        // There is no place for the origin on an axis of powers.
        assert_eq!(places(false, true, 0.0..9.0).len(), 50);
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
