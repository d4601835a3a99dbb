//! The plot of a figure, as SVG; it measures nothing.
//!
//! ```text
//! title: what is seen
//! ┌ plot: our curves, the paper's values dashed ┐ legend beside it, over no point
//! └ axes with units ────────────────────────────┘
//! the paper's values beside ours, as text
//! ```

mod axis;

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{Compared, Course, Drawn, Marks, Panel, Point, Reference, Straight};
use axis::{Axis, Ticked};

const WIDTH: u32 = 1100;
/// Height of a plot, in pixels.
const HEIGHT: u32 = 460;
const TITLE_HEIGHT: u32 = 44;
const CAPTION_LINE: u32 = 18;
/// Left edge of text, and width of the legend beside a plot, in pixels.
const MARGIN: i32 = 24;
const LEGEND_WIDTH: u32 = 270;
const LEGEND_LINE: i32 = 18;
/// Longest line of the legend, in characters of its font.
const LEGEND_CHARS: usize = 34;
const FONT: &str = "sans-serif";
/// Dashes of the paper's values, in pixels.
const DASH: u32 = 7;
const DASH_GAP: u32 = 5;
/// Segments of a straight line that is bent because only one axis is logarithmic.
const PIECES_BENT: u32 = 50;
/// Colours of curves: distinguishable by colour-blind readers, and dark enough on white (at least
/// 3:1, WCAG 2.2, 1.4.11), after Okabe and Ito.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(200, 80, 0),
    RGBColor(0, 135, 100),
    RGBColor(170, 80, 140),
    RGBColor(40, 40, 40),
    RGBColor(130, 80, 10),
    RGBColor(100, 60, 190),
    RGBColor(190, 30, 45),
];

/// Colour of the paper's values that belong to several curves, or to none.
const OF_NO_CURVE: RGBColor = RGBColor(90, 90, 90);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawing<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Draws all panels, one below the other, and the paper's values beside ours as text below.
pub(super) fn draw(path: &Path, title: &str, drawn: &Drawn) -> Result<()> {
    let mut text = String::new();
    let lines = drawn.compared.len() as u32 + 2;
    let plots = HEIGHT * drawn.panels.len() as u32;
    let size = (WIDTH, TITLE_HEIGHT + plots + CAPTION_LINE * lines);
    let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
    all(&root, title, plots, drawn)
        .map_err(|error| anyhow!("drawing {}: {error}", path.display()))?;
    drop(root);
    std::fs::write(path, text).map_err(|error| anyhow!("writing {}: {error}", path.display()))
}

fn all(root: &Area<'_>, title: &str, plots: u32, drawn: &Drawn) -> Drawing {
    root.fill(&WHITE)?;
    let (heading, rest) = root.split_vertically(TITLE_HEIGHT);
    heading.draw(&Text::new(title.to_owned(), (MARGIN, 14), (FONT, 18).into_font()))?;
    let (above, below) = rest.split_vertically(plots);
    for (area, panel) in above.split_evenly((drawn.panels.len(), 1)).iter().zip(&drawn.panels) {
        curves(area, *panel, drawn)?;
    }
    for (at, Compared { what, unit, paper, ours }) in drawn.compared.iter().enumerate() {
        let ours = ours.map_or_else(|| "none".to_owned(), |ours| format!("{ours:.2} {unit}"));
        let line = format!("{what}: paper {paper:.2}, here {ours}");
        let place = (MARGIN, 5 + CAPTION_LINE as i32 * i32::try_from(at)?);
        below.draw(&Text::new(line, place, (FONT, 14)))?;
    }
    root.present()?;
    Ok(())
}

/// Entry of the legend.
struct Entry {
    name: String,
    colour: RGBColor,
    sign: Sign,
}

#[derive(Clone, Copy, PartialEq)]
enum Sign {
    Line,
    Dot,
    Dashes,
}

/// Curve of a panel, with the positions of its points.
struct Curve<'a> {
    name: &'a str,
    colour: RGBColor,
    places: Vec<(f64, f64)>,
}

fn curves(area: &Area<'_>, panel: Panel, drawn: &Drawn) -> Drawing {
    let x = Axis { quantity: panel.x, is_log: panel.log_x };
    let y = Axis { quantity: panel.y, is_log: panel.log_y };
    let curves = placed(panel.marks, &drawn.points, (x, y));
    let all = || curves.iter().flat_map(|curve| &curve.places);
    let x_range = x.range(all().map(|(x, _)| *x), false);
    let references: Vec<&Reference> =
        drawn.references.iter().filter(|it| it.y == panel.y).collect();
    let papers = dashes(&references, (x, y), &x_range);
    let of_paper = papers.iter().flatten().flatten();
    let y_range = y.range(all().chain(of_paper).map(|(_, y)| *y), true);
    let (plot, beside) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
    let mut chart = ChartBuilder::on(&plot)
        .margin(10)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(Ticked::new(x, x_range.clone()), Ticked::new(y, y_range))?;
    chart
        .configure_mesh()
        .x_desc(panel.x.names().1)
        .y_desc(panel.y.names().1)
        .axis_desc_style((FONT, 15))
        .label_style((FONT, 13))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    let mut legend = Vec::new();
    for (reference, lines) in references.iter().zip(&papers) {
        let of_curve = curves.iter().find(|curve| curve.name == reference.curve);
        let colour = of_curve.map_or(OF_NO_CURVE, |curve| curve.colour);
        for line in lines {
            let style = colour.mix(0.8).stroke_width(2);
            let dashed = DashedLineSeries::new(line.iter().copied(), DASH, DASH_GAP, style);
            chart.draw_series(dashed)?;
        }
        legend.push(Entry { name: reference.name.clone(), colour, sign: Sign::Dashes });
    }
    let is_dots = matches!(panel.marks, Marks::Dots { .. });
    for Curve { name, colour, places } in &curves {
        let places = places.iter().copied();
        if is_dots {
            chart.draw_series(places.map(|at| Circle::new(at, 2, colour.mix(0.8).filled())))?;
        } else {
            let line = LineSeries::new(places, colour.stroke_width(2)).point_size(3);
            chart.draw_series(line)?;
        }
        let sign = if is_dots { Sign::Dot } else { Sign::Line };
        legend.push(Entry { name: (*name).to_owned(), colour: *colour, sign });
    }
    if let Marks::Dots { beside, .. } = panel.marks {
        let line = straight(beside, (x, y), x_range.clone());
        chart.draw_series(LineSeries::new(line, BLACK.stroke_width(1)))?;
        let name = beside.name.to_owned();
        legend.push(Entry { name, colour: BLACK, sign: Sign::Line });
    }
    // Measured curves first, then the paper's values.
    legend.sort_by_key(|entry| entry.sign == Sign::Dashes);
    legend.dedup_by(|entry, before| {
        let is_same = entry.name == before.name && entry.sign == before.sign;
        if is_same && entry.colour != before.colour {
            before.colour = OF_NO_CURVE;
        }
        is_same
    });
    draw_legend(&beside, &legend)
}

/// Draws the legend beside the plot, where it hides nothing.
fn draw_legend(area: &Area<'_>, entries: &[Entry]) -> Drawing {
    const SIGN: (i32, i32) = (4, 26);
    let mut y = 20;
    for Entry { name, colour, sign } in entries {
        let middle = y + 7;
        let line = |from: i32, to: i32| {
            PathElement::new([(from, middle), (to, middle)], colour.stroke_width(2))
        };
        match sign {
            Sign::Dot => area.draw(&Circle::new((15, middle), 3, colour.filled()))?,
            Sign::Line => area.draw(&line(SIGN.0, SIGN.1))?,
            Sign::Dashes => {
                area.draw(&line(SIGN.0, SIGN.0 + 8))?;
                area.draw(&line(SIGN.1 - 8, SIGN.1))?;
            }
        }
        for words in wrapped(name, LEGEND_CHARS) {
            area.draw(&Text::new(words, (SIGN.1 + 8, y), (FONT, 14)))?;
            y += LEGEND_LINE;
        }
    }
    Ok(())
}

/// Wraps words into lines of at most `most` characters.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one from the beginning");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= most {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

fn placed(marks: Marks, points: &[Point], (x, y): (Axis, Axis)) -> Vec<Curve<'_>> {
    let place = |point: &Point| x.place(point).zip(y.place(point));
    let curve = |(at, (name, points)): (usize, (_, Vec<&Point>))| {
        let places = points.into_iter().filter_map(place).collect();
        Curve { name, colour: COLOURS[at % COLOURS.len()], places }
    };
    series(marks, points).into_iter().enumerate().map(curve).collect()
}

/// Returns the lines of each reference, as positions.
fn dashes(
    references: &[&Reference],
    (x, y): (Axis, Axis),
    range: &Range<f64>,
) -> Vec<Vec<Vec<(f64, f64)>>> {
    let ends = |from: f64, to: f64, value: f64| {
        y.at(value).map(|place| vec![(from, place), (to, place)]).into_iter().collect::<Vec<_>>()
    };
    let of = |reference: &&Reference| match &reference.course {
        Course::Level(value) => ends(range.start, range.end, *value),
        Course::Steps(steps) => {
            let step = |(from, to, value): &(f64, f64, f64)| match (x.at(*from), x.at(*to)) {
                (Some(from), Some(to)) => {
                    ends(from.clamp(range.start, range.end), to.min(range.end), *value)
                }
                _ => Vec::new(),
            };
            steps.iter().flat_map(step).collect()
        }
        Course::Slope(slope) => {
            vec![straight(Straight { name: "", slope: *slope }, (x, y), range.clone())]
        }
    };
    references.iter().map(of).collect()
}

/// Returns the points of each curve that a panel shows, in the order of measurement, which is that
/// of the paper's legend.
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

/// Returns positions on a straight line over a range.
fn straight(line: Straight, (x, y): (Axis, Axis), range: Range<f64>) -> Vec<(f64, f64)> {
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
    use super::super::Quantity;
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
        let drawn = Drawn {
            points,
            compared,
            columns: &[],
            panels,
            notes: Vec::new(),
            references: Vec::new(),
        };
        draw(&path, "throughput under rising load", &drawn).unwrap();
        let svg = std::fs::read_to_string(path).unwrap();
        for text in [
            "throughput under rising load",
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
    fn a_scatter_panel_draws_its_named_curves_and_its_reference_line() {
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
            references: Vec::new(),
        };
        draw(&path, "x", &drawn).unwrap();
        let svg = std::fs::read_to_string(path).unwrap();
        assert!(["coded, far", "at most 800"].iter().all(|text| svg.contains(text)));
        assert!(!svg.contains("plain"));
        // Three dots, and one of each curve in the legend.
        assert_eq!(svg.matches("<circle").count(), 5);
    }

    #[test]
    fn a_legend_has_lines_of_whole_words() {
        assert_eq!(
            wrapped("the line alone (fixed redirect)", 16),
            ["the line alone", "(fixed redirect)"]
        );
        assert_eq!(wrapped("short", 15), ["short"]);
    }

    #[test]
    fn colours_are_seen_on_white() {
        // Relative luminance and contrast: WCAG 2.2.
        let part = |value: u8| {
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        for RGBColor(red, green, blue) in COLOURS {
            let luminance = 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
            let contrast = 1.05 / (luminance + 0.05);
            assert!(contrast >= 3.0, "{red} {green} {blue}: {contrast}");
        }
    }

    #[test]
    fn the_papers_values_are_in_the_plot_where_they_belong() {
        let axis = |quantity, is_log| Axis { quantity, is_log };
        let axes = (axis(Quantity::Seconds, false), axis(Quantity::Delay, true));
        let reference = |course| Reference {
            y: Quantity::Delay,
            curve: "a".to_owned(),
            name: "paper".to_owned(),
            course,
        };
        let level = reference(Course::Level(100.0));
        let steps = reference(Course::Steps(vec![(0.0, 2.0, 10.0), (2.0, 99.0, 1000.0)]));
        let places = dashes(&[&level, &steps], axes, &(0.0..4.0));
        assert_eq!(places[0], [[(0.0, 2.0), (4.0, 2.0)]]);
        assert_eq!(places[1], [[(0.0, 1.0), (2.0, 1.0)], [(2.0, 3.0), (4.0, 3.0)]]);
    }

    #[test]
    fn a_line_through_the_origin_is_straight_where_both_axes_are_alike() {
        let scale = |quantity, is_log| Axis { quantity, is_log };
        let line = Straight { name: "", slope: 10.0 };
        let places = |x, y, range| {
            straight(line, (scale(Quantity::Length, x), scale(Quantity::Time, y)), range)
        };
        let powers = places(true, true, 2.0..4.0);
        assert_eq!(powers.len(), 2);
        assert!(powers.iter().all(|(x, y)| (y - x - 1.0).abs() < 1e-9));
        assert!(places(false, false, 0.0..9.0).iter().all(|(x, y)| (y - 10.0 * x).abs() < 1e-9));
        // The origin has no position on a logarithmic axis.
        assert_eq!(places(false, true, 0.0..9.0).len(), 50);
    }
}
