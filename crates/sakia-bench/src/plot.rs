//! Plots as SVG: lines over a continuous axis, perhaps with deviations, drawn by `plotters`.

use std::io;
use std::ops::Range;

use anyhow::Context;
use plotters::coord::Shift;
use plotters::prelude::*;

/// The contents of a plot.
#[derive(Clone, Debug, Default)]
pub struct Plot {
    /// The text above it.
    pub title: String,
    /// The text below it, with the unit.
    pub x_label: String,
    /// The text beside it, with the unit.
    pub y_label: String,
    /// The lines.
    pub series: Vec<Series>,
    /// The scale of both axes.
    pub scale: Scale,
}

/// The scale of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from 0.
    #[default]
    Linear,
    /// By powers of ten. Values that are not above 0 are left out.
    Logarithmic,
}

/// A line of a plot.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// The length of the error bar of each point, up and down; may be empty.
    pub deviations: Vec<f64>,
}

/// The drawing area of a plot.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Width and height of a plot.
const SIZE: (u32, u32) = (760, 380);
/// The part of the width for the legend.
const LEGEND_WIDTH: u32 = 110;
/// The colors of lines, which people with color blindness can distinguish (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 86, 86),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

impl Plot {
    /// Returns the plot as an `svg` element.
    ///
    /// # Errors
    /// An error of `plotters`; none is known.
    pub fn to_svg(&self) -> anyhow::Result<String> {
        let mut svg = String::new();
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        self.draw(&area).with_context(|| format!("plot {}", self.title))?;
        drop(area);
        Ok(svg)
    }

    fn draw(&self, area: &Area<'_>) -> Result<(), DrawingAreaErrorKind<io::Error>> {
        let [x_axis, y_axis] = self.axes();
        let font = |size: u32| ("sans-serif", size).into_font();
        let label = |value: &f64| self.scale.label(*value);

        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, font(18))
            .margin(10)
            .margin_right(LEGEND_WIDTH)
            .x_label_area_size(42)
            .y_label_area_size(72)
            .build_cartesian_2d(x_axis, y_axis.clone())?;
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(WHITE)
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .axis_desc_style(font(14))
            .label_style(font(13));
        if self.scale == Scale::Logarithmic {
            mesh.x_label_formatter(&label).y_label_formatter(&label);
        }
        mesh.draw()?;
        // The legend is beside the lines, so that it does not hide them.
        let (mut y, x) = (40, SIZE.0 as i32 - LEGEND_WIDTH as i32 + 14);
        for (series, color) in self.series.iter().zip(COLORS.into_iter().cycle()) {
            let line = LineSeries::new(self.placed(series), color.stroke_width(2));
            chart.draw_series(line.point_size(4))?;
            for [low, high] in self.bars(series, y_axis.start) {
                let bar = PathElement::new(vec![low, high], color.stroke_width(1));
                chart.draw_series([bar])?;
            }
            let mark = Rectangle::new([(x, y), (x + 14, y + 8)], color.filled());
            area.draw(&mark)?;
            area.draw(&Text::new(series.name.as_str(), (x + 20, y - 3), font(14)))?;
            y += 20;
        }
        area.present()
    }

    /// Returns the points of a line at their positions in the drawing.
    fn placed(&self, series: &Series) -> Vec<(f64, f64)> {
        let place = |&(x, y): &(f64, f64)| Some((self.scale.place(x)?, self.scale.place(y)?));
        series.points.iter().filter_map(place).collect()
    }

    /// Returns the ends of its error bars, cut off at the axis.
    fn bars(&self, series: &Series, bottom: f64) -> Vec<[(f64, f64); 2]> {
        let bar = |(&(x, y), &deviation): (&(f64, f64), &f64)| {
            let x = self.scale.place(x)?;
            let high = self.scale.place(y + deviation)?;
            let low = self.scale.place(y - deviation).unwrap_or(bottom).max(bottom);
            (deviation > 0.0).then_some([(x, low), (x, high)])
        };
        series.points.iter().zip(&series.deviations).filter_map(bar).collect()
    }

    /// Returns the ranges of both axes.
    fn axes(&self) -> [Range<f64>; 2] {
        let points = self.series.iter().flat_map(|series| self.placed(series));
        let ends = self.series.iter().flat_map(|series| self.bars(series, f64::INFINITY));
        let tops: Vec<_> = ends.map(|[_, high]| high).collect();
        let all: Vec<_> = points.collect();
        let range = |values: &mut dyn Iterator<Item = f64>| {
            let values: Vec<_> = values.filter(|value| value.is_finite()).collect();
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            match self.scale {
                Scale::Linear if most > 0.0 => 0.0..most * 1.08,
                Scale::Logarithmic if most.is_finite() => {
                    least.floor()..(most + 0.05).max(least + 0.1)
                }
                _ => 0.0..1.0,
            }
        };
        [
            range(&mut all.iter().map(|point| point.0)),
            range(&mut all.iter().chain(&tops).map(|point| point.1)),
        ]
    }
}

impl Scale {
    /// Returns the position of a value on an axis of this scale.
    fn place(self, value: f64) -> Option<f64> {
        match self {
            Self::Linear => Some(value),
            Self::Logarithmic => (value > 0.0).then(|| value.log10()),
        }
    }

    /// Returns the label of a position, on axes by powers of ten.
    fn label(self, place: f64) -> String {
        let value = 10f64.powf(place);
        match value {
            999_500.0.. => format!("{:.3}M", value / 1e6),
            999.5.. => format!("{:.3}k", value / 1e3),
            _ => format!("{value:.3}"),
        }
        .replace(".000", "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>) -> Plot {
        let series = vec![Series { name: "one <line>".into(), points, ..Series::default() }];
        let (x_label, y_label) = ("x".into(), "y".into());
        Plot { title: "a & b".into(), x_label, y_label, series, ..Plot::default() }
    }

    #[test]
    fn plot_is_one_element_with_its_names() {
        let svg = plot(vec![(1.0, 2.0), (2.0, 1.0)]).to_svg().unwrap();
        assert_eq!((svg.matches("<svg ").count(), svg.matches("</svg>").count()), (1, 1));
        assert!(svg.contains("a &amp; b") && svg.contains("one &lt;line&gt;"), "{svg}");
        assert_eq!(svg.matches("<circle ").count(), 2);
        assert!(!svg.contains("href"), "nothing is loaded from elsewhere");
    }

    #[test]
    fn plot_of_nothing_is_drawn() {
        for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, f64::INFINITY)]] {
            assert!(plot(points).to_svg().unwrap().contains("</svg>"));
        }
    }

    #[test]
    fn deviations_are_bars_that_end_at_the_axis() {
        let mut plot = plot(vec![(1.0, 10.0), (100.0, 20.0), (1000.0, 30.0)]);
        let color = "stroke=\"#0072B2\"";
        let paths = |plot: &Plot| {
            let svg = plot.to_svg().unwrap();
            svg.split('<').filter(|e| e.starts_with("polyline ") && e.contains(color)).count()
        };
        let without = paths(&plot);
        plot.series[0].deviations = vec![1.0, 0.0, 300.0];
        assert_eq!(paths(&plot), without + 2, "none where there is no deviation");
        assert_eq!(plot.axes()[1], 0.0..330.0 * 1.08);
        plot.scale = Scale::Logarithmic;
        let [x, y] = plot.axes();
        assert_eq!(
            (x.start, y.start, plot.bars(&plot.series[0], 1.0)[1][0]),
            (0.0, 1.0, (3.0, 1.0))
        );
        assert!(x.end > 3.0 && y.end > 330f64.log10());
        assert!(plot.to_svg().unwrap().contains("</svg>"));
        plot.series[0].points = vec![(0.0, 0.0)];
        assert!(plot.to_svg().unwrap().contains("</svg>"), "a logarithmic axis has no 0");
    }

    #[test]
    fn labels_of_powers_are_numbers() {
        let label = |place| Scale::Logarithmic.label(place);
        assert_eq!([label(0.0), label(3.0), label(5.0), label(8.0)], ["1", "1k", "100k", "100M"]);
        assert_eq!(label(0.5), "3.162");
    }
}
